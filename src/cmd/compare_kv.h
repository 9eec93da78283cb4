// `pagoda eval --compare-kv`: a text in several KV formats, as a table or JSON.
#pragma once

#include <optional>
#include <vector>

#include "base/token_id.h"
#include "cmd/options.h"

namespace pagoda::cmd {

struct EvalText {
  std::vector<TokenId> tokens;
  std::optional<TokenId> bos;  // what each window of the text begins with
};

// Errors: kInvalidArgument with the option's name as Error::where, for formats that do not exist and texts that are too short.
Status compare_kv(const Options& options, const engine::EngineConfig& config, const EvalText& text);

}  // namespace pagoda::cmd
