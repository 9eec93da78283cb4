// Which layers share a block table and in which formats they store K and V: decided once per model, before a byte is allocated.
#pragma once

#include <string_view>
#include <vector>

#include "base/error.h"
#include "models/blocks.h"
#include "weights/gguf.h"
#include "weights/model_config.h"

namespace pagoda::models {

// One group of global layers and, for models with a sliding window, one of local layers.
// `format`: "bf16"; "q8"; "auto": q8, but K in bf16 in layers with a K bias (its outliers cost int8 too much; Qwen2.5).
// Errors: kInvalidArgument for another name, listing these.
Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format);

}  // namespace pagoda::models
