// Where a model is: a path as it stands, or a name: of a recipe, or of a file in the model folder.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"
#include "engine/kv_probe.h"

namespace pagoda::cmd {

// $PAGODA_MODELS, or ~/.cache/pagoda/models.
std::filesystem::path model_folder();

// Where probed KV formats are (engine/kv_probe.h): the user's in $XDG_CACHE_HOME/pagoda/kv-probes, or ~/.cache/pagoda/kv-probes, and those
// of the recipes' models, models/kv_probes.txt.
engine::KvProbeSources probe_sources();

// kNotFound says what was looked for, and how to fetch a recipe's model that is not there yet.
Result<std::filesystem::path> find_model(const std::string& model);

}  // namespace pagoda::cmd
