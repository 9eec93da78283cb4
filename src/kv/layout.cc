#include "kv/layout.h"

#include <cstring>

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t align_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

size_t scale_bytes(KvType type) { return type == KvType::kInt8 ? align_up(kBlockTokens * sizeof(uint16_t)) : 0; }

size_t value_bytes(KvType type, int head_dim) {
  return align_up(static_cast<size_t>(kBlockTokens) * head_dim * (type == KvType::kInt8 ? 1 : 2));
}

// K lies in rows of [32 tokens][4 bytes], whatever the type.
void copy_k(KvType type, int head_dim, size_t n_tokens, const std::byte* from, std::byte* to) {
  constexpr size_t kSlot = 4, kRow = kBlockTokens * kSlot;
  for (size_t at = 0; at < value_bytes(type, head_dim); at += kRow) std::memcpy(to + at, from + at, n_tokens * kSlot);
}

// V lies in rows of [head_dim][4 bytes], of 2 or 4 tokens; of the last row perhaps only the first tokens are copied.
void copy_v(KvType type, int head_dim, size_t n_tokens, const std::byte* from, std::byte* to) {
  const auto row_tokens = static_cast<size_t>(packed_elements(type));
  const size_t row = static_cast<size_t>(head_dim) * 4;
  const size_t whole = n_tokens / row_tokens * row;
  std::memcpy(to, from, whole);
  const size_t rest = n_tokens % row_tokens * (4 / row_tokens);
  if (rest == 0) return;
  for (size_t at = whole; at < whole + row; at += 4) std::memcpy(to + at, from + at, rest);
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

void copy_tokens(const GroupLayout& group, int n_tokens, const std::byte* from, std::byte* to) {
  CHECK(n_tokens >= 0 && n_tokens <= kBlockTokens && from != to);
  const auto n = static_cast<size_t>(n_tokens);
  std::memset(to, 0, group.block_bytes);
  for (const LayerLayout& layer : group.layers) {
    for (int head = 0; head < group.n_kv_heads; ++head) {
      const size_t at = layer.offset + static_cast<size_t>(head) * layer.head_bytes;
      copy_k(layer.format.k, group.head_dim, n, from + at, to + at);
      copy_v(layer.format.v, group.head_dim, n, from + at + layer.v, to + at + layer.v);
      if (layer.format.k == KvType::kInt8) {
        std::memcpy(to + at + layer.k_scales, from + at + layer.k_scales, n * sizeof(uint16_t));
      }
      if (layer.format.v == KvType::kInt8) {
        std::memcpy(to + at + layer.v_scales, from + at + layer.v_scales, n * sizeof(uint16_t));
      }
    }
  }
}

std::string to_string(LayerFormat format) {
  if (format.k == format.v) return format.k == KvType::kInt8 ? "q8" : "bf16";
  return format.k == KvType::kBf16 ? "k16v8" : "k8v16";
}

}  // namespace pagoda::kv
