#include "kv/layout.h"

#include <cstring>
#include <string_view>

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t align_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

size_t scale_bytes(KvType type) { return is_scaled(type) ? align_up(kBlockTokens * sizeof(uint16_t)) : 0; }

constexpr size_t kCell = 4;  // bytes

size_t k_row_bytes() { return kBlockTokens * kCell; }
size_t k_bytes(KvType type, int head_dim) {
  return static_cast<size_t>(head_dim / k_packed_dims(type)) * k_row_bytes();
}
size_t v_row_bytes(KvType type, int head_dim) { return static_cast<size_t>(v_row_cells(type, head_dim)) * kCell; }
size_t v_bytes(KvType type, int head_dim) {
  return static_cast<size_t>(kBlockTokens / v_packed_tokens(type)) * v_row_bytes(type, head_dim);
}

// K lies in rows of [32 tokens][4 bytes], whatever the type.
void copy_k(KvType type, int head_dim, size_t n_tokens, const std::byte* from, std::byte* to) {
  const size_t bytes = k_bytes(type, head_dim);
  for (size_t at = 0; at < bytes; at += k_row_bytes()) std::memcpy(to + at, from + at, n_tokens * kCell);
}

// V lies in rows of 2 or 4 tokens; of the last row perhaps only the first tokens are copied.
void copy_v(KvType type, int head_dim, size_t n_tokens, const std::byte* from, std::byte* to) {
  const auto row_tokens = static_cast<size_t>(v_packed_tokens(type));
  const size_t row = v_row_bytes(type, head_dim);
  const size_t whole = n_tokens / row_tokens * row;
  std::memcpy(to, from, whole);
  const size_t rest = n_tokens % row_tokens * (kCell / row_tokens);
  if (rest == 0) return;
  for (size_t at = whole; at < whole + row; at += kCell) std::memcpy(to + at, from + at, rest);
}

std::string_view bits_of(KvType type) {
  switch (type) {
    case KvType::kBf16:
      return "16";
    case KvType::kInt8:
      return "8";
    case KvType::kInt4:
      return "4";
  }
  return "?";
}

}  // namespace

size_t token_head_bytes(LayerFormat format, int head_dim) {
  const size_t values = (k_bytes(format.k, head_dim) + v_bytes(format.v, head_dim)) / kBlockTokens;
  return values + (is_scaled(format.k) ? sizeof(uint16_t) : 0) + (is_scaled(format.v) ? sizeof(uint16_t) : 0);
}

GroupLayout GroupLayout::make(int n_kv_heads, int head_dim, std::span<const LayerFormat> layers) {
  CHECK(n_kv_heads > 0 && head_dim > 0 && head_dim % 16 == 0 && head_dim <= kMaxHeadDim);
  GroupLayout group{.n_kv_heads = n_kv_heads, .head_dim = head_dim, .layers = {}, .block_bytes = 0};
  for (const LayerFormat format : layers) {
    LayerLayout layer{.format = format, .offset = group.block_bytes};
    layer.k_scales = align_up(k_bytes(format.k, head_dim));
    layer.v = layer.k_scales + scale_bytes(format.k);
    layer.v_scales = layer.v + align_up(v_bytes(format.v, head_dim));
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
      if (is_scaled(layer.format.k)) {
        std::memcpy(to + at + layer.k_scales, from + at + layer.k_scales, n * sizeof(uint16_t));
      }
      if (is_scaled(layer.format.v)) {
        std::memcpy(to + at + layer.v_scales, from + at + layer.v_scales, n * sizeof(uint16_t));
      }
    }
  }
}

std::string to_string(LayerFormat format) {
  if (format.k != format.v) return "k" + std::string(bits_of(format.k)) + "v" + std::string(bits_of(format.v));
  return format.k == KvType::kBf16 ? "bf16" : "q" + std::string(bits_of(format.k));
}

}  // namespace pagoda::kv
