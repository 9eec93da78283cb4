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
// `format`: one of every layer: "bf16", "q8", "k16v8", "k8v16", "k16v4"; "auto", which is q8, and "k8v4" and "q4", all but K in bf16 in
// layers with a K bias (its outliers cost integers too much; Qwen2.5); or a table of all layers in order, as "k16v8*2,q8*21,k16v8", which
// is taken as it stands.   Errors: kInvalidArgument for another name, listing these, or a table of another number of layers.
Result<std::vector<kv::LayerFormat>> layer_formats(std::string_view format, std::span<const uint8_t> k_bias);
// The names, "auto" first: what options and error messages offer.
std::vector<std::string> format_names();

// The reverse: one name where all layers store the same and the name means that of every model, else the table.
std::string format_table(std::span<const kv::LayerFormat> formats);
// Of a model's groups, by layer.
std::string format_table(std::span<const AttentionGroup> groups);

// What may be tried in turn where memory is short, the best first: `format` alone, or for "auto" all that a quality gate lets through.
std::vector<std::string> fitting_formats(std::string_view format);

std::vector<uint8_t> k_bias_layers(const weights::Gguf& gguf, const weights::ModelConfig& config);

// One group of global layers and, for models with a sliding window, one of local layers; layer i stores formats[i].
std::vector<AttentionGroup> group_layers(const weights::ModelConfig& config, std::span<const kv::LayerFormat> formats);

// What a token takes of such groups, and what they store.
struct KvFootprint {
  std::string format;  // as asked for
  std::string note;    // what is stored otherwise than that says: "as k16v4", and a table for "auto"; empty: nothing
  uint64_t bytes_per_token = 0;         // of the layers that see everything: grows with the context
  uint64_t window_bytes_per_token = 0;  // of the sliding-window layers: for the window only
};
KvFootprint footprint(std::string_view format, std::span<const AttentionGroup> groups);

// layer_formats, k_bias_layers and group_layers for a file.
Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format);

}  // namespace pagoda::models
