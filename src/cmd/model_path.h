// Where a model is: a path as it stands, or a name: of a recipe, or of a file in the model folder.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace pagoda::cmd {

// $PAGODA_MODELS, or ~/.cache/pagoda/models.
std::filesystem::path model_folder();

// Where probed KV formats are kept (engine/kv_probe.h): $XDG_CACHE_HOME/pagoda/kv-probes, or ~/.cache/pagoda/kv-probes.
std::filesystem::path probe_folder();

// kNotFound says what was looked for, and how to fetch a recipe's model that is not there yet.
Result<std::filesystem::path> find_model(const std::string& model);

}  // namespace pagoda::cmd
