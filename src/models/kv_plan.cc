#include "models/kv_plan.h"

#include <array>

#include "models/loader.h"

namespace pagoda::models {
namespace {

constexpr std::array<std::string_view, 1> kBestFirst{"auto"};

}  // namespace

Result<std::vector<kv::LayerFormat>> layer_formats(std::string_view format, std::span<const uint8_t> k_bias) {
  if (format != "auto" && format != "q8" && format != "bf16") {
    return fail(ErrorCode::kInvalidArgument, "unknown KV format \"{}\"; there are auto, q8, bf16", format);
  }
  std::vector<kv::LayerFormat> formats;
  for (const uint8_t has_k_bias : k_bias) {
    if (format == "bf16")
      formats.push_back({kv::KvType::kBf16, kv::KvType::kBf16});
    else
      formats.push_back(
          {format == "auto" && has_k_bias != 0 ? kv::KvType::kBf16 : kv::KvType::kInt8, kv::KvType::kInt8});
  }
  return formats;
}

std::vector<std::string> fitting_formats(std::string_view format) {
  if (format == "auto") return {kBestFirst.begin(), kBestFirst.end()};
  return {std::string(format)};
}

std::vector<uint8_t> k_bias_layers(const weights::Gguf& gguf, const weights::ModelConfig& config) {
  std::vector<uint8_t> k_bias;
  for (int layer = 0; layer < config.n_layers; ++layer)
    k_bias.push_back(gguf.find(layer_tensor(layer, "attn_k.bias")) != nullptr ? 1 : 0);
  return k_bias;
}

std::vector<AttentionGroup> group_layers(const weights::ModelConfig& config, std::span<const kv::LayerFormat> formats) {
  AttentionGroup global{.window = 0, .layers = {}, .layout = {}};
  AttentionGroup local{.window = config.sliding_window, .layers = {}, .layout = {}};
  for (int layer = 0; layer < config.n_layers; ++layer)
    (config.is_local(layer) ? local : global).layers.push_back(layer);

  std::vector<AttentionGroup> groups;
  for (AttentionGroup* group : {&global, &local}) {
    if (group->layers.empty()) continue;
    std::vector<kv::LayerFormat> own;
    for (const int layer : group->layers) own.push_back(formats[static_cast<size_t>(layer)]);
    group->layout = kv::GroupLayout::make(config.n_kv_heads, config.head_dim, own);
    groups.push_back(std::move(*group));
  }
  return groups;
}

Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format) {
  TRY_ASSIGN(const std::vector<kv::LayerFormat> formats, layer_formats(format, k_bias_layers(gguf, config)));
  return group_layers(config, formats);
}

}  // namespace pagoda::models
