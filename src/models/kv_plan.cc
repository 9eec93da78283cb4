#include "models/kv_plan.h"

#include "models/loader.h"

namespace pagoda::models {

Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format) {
  if (format != "auto" && format != "q8" && format != "bf16") {
    return fail(ErrorCode::kInvalidArgument, "unknown KV format \"{}\"; there are auto, q8, bf16", format);
  }
  const auto format_of = [&](int layer) -> kv::LayerFormat {
    if (format == "bf16") return {kv::KvType::kBf16, kv::KvType::kBf16};
    const bool has_k_bias = gguf.find(layer_tensor(layer, "attn_k.bias")) != nullptr;
    return {format == "auto" && has_k_bias ? kv::KvType::kBf16 : kv::KvType::kInt8, kv::KvType::kInt8};
  };

  AttentionGroup global{.window = 0, .layers = {}, .layout = {}};
  AttentionGroup local{.window = config.sliding_window, .layers = {}, .layout = {}};
  for (int layer = 0; layer < config.n_layers; ++layer)
    (config.is_local(layer) ? local : global).layers.push_back(layer);

  std::vector<AttentionGroup> groups;
  for (AttentionGroup* group : {&global, &local}) {
    if (group->layers.empty()) continue;
    std::vector<kv::LayerFormat> formats;
    for (const int layer : group->layers) formats.push_back(format_of(layer));
    group->layout = kv::GroupLayout::make(config.n_kv_heads, config.head_dim, formats);
    groups.push_back(std::move(*group));
  }
  return groups;
}

}  // namespace pagoda::models
