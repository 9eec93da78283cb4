#include "kv/layout.h"

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t align_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

size_t scale_bytes(KvType type) { return type == KvType::kInt8 ? align_up(kBlockTokens * sizeof(uint16_t)) : 0; }

size_t value_bytes(KvType type, int head_dim) {
  return align_up(static_cast<size_t>(kBlockTokens) * head_dim * (type == KvType::kInt8 ? 1 : 2));
}

}  // namespace

size_t token_head_bytes(KvType type, int head_dim) {
  return type == KvType::kInt8 ? static_cast<size_t>(head_dim) + sizeof(uint16_t) : static_cast<size_t>(head_dim) * 2;
}

GroupLayout GroupLayout::make(int n_kv_heads, int head_dim, std::span<const LayerFormat> layers) {
  CHECK(n_kv_heads > 0 && head_dim > 0 && head_dim % 16 == 0);
  GroupLayout group{.n_kv_heads = n_kv_heads, .head_dim = head_dim, .layers = {}, .block_bytes = 0};
  for (const LayerFormat format : layers) {
    LayerLayout layer{.format = format, .offset = group.block_bytes};
    layer.k_scales = value_bytes(format.k, head_dim);
    layer.v = layer.k_scales + scale_bytes(format.k);
    layer.v_scales = layer.v + value_bytes(format.v, head_dim);
    layer.head_bytes = layer.v_scales + scale_bytes(format.v);
    group.block_bytes += layer.head_bytes * static_cast<size_t>(n_kv_heads);
    group.layers.push_back(layer);
  }
  return group;
}

std::string to_string(LayerFormat format) {
  if (format.k == format.v) return format.k == KvType::kInt8 ? "q8" : "bf16";
  return format.k == KvType::kBf16 ? "k16v8" : "k8v16";
}

}  // namespace pagoda::kv
