// Which layers share a block table and in which formats they store K and V: decided once per model, before a byte is allocated.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "models/blocks.h"
#include "weights/gguf.h"
#include "weights/model_config.h"

namespace pagoda::models {

// What each layer stores; k_bias[layer] is 1 where the layer has a K bias.
// `format`: "bf16", "q8", "k16v8" and "k16v4" are that in every layer; "auto" is q8, "k8v4" and "q4" are as they say, but K is bf16 in
// layers with a K bias (its outliers cost integers too much; Qwen2.5).
// Errors: kInvalidArgument for another name, listing these.
Result<std::vector<kv::LayerFormat>> layer_formats(std::string_view format, std::span<const uint8_t> k_bias);

// What may be tried in turn where memory is short, the best first: `format` alone, or for "auto" all that a quality gate lets through.
std::vector<std::string> fitting_formats(std::string_view format);

std::vector<uint8_t> k_bias_layers(const weights::Gguf& gguf, const weights::ModelConfig& config);

// One group of global layers and, for models with a sliding window, one of local layers; layer i stores formats[i].
std::vector<AttentionGroup> group_layers(const weights::ModelConfig& config, std::span<const kv::LayerFormat> formats);

// Which layers store what, in a few words: "q8", or "k16v8 in layers 0-3, q8 in layers 4-23".
std::string describe_formats(std::span<const AttentionGroup> groups);

// The first three for a file.
Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format);

}  // namespace pagoda::models
