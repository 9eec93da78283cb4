// GroupLayout: where every byte of a KV block lies. One block holds 32 tokens of all layers of one attention group:
//
//   [layer 0][layer 1]...                      each layer in its own formats
//   layer:   [kv head 0][kv head 1]...
//   kv head: [K | K scales | V | V scales]     every part starts on 64 bytes
//
// K bf16  [head_dim/2][32 tokens][2]    K int8  [head_dim/4][32 tokens][4]     AMX and VNNI B operands: no horizontal sums
// V bf16  [32 tokens/2][head_dim][2]    V int8  [32 tokens/4][head_dim][4]     the same of P.V, whose sum runs over tokens
// K int4  [head_dim/8][32 tokens][4]    V int4  [32 tokens/4][groups of 32 dims][16][4]
// scales  f16 [32 tokens], of integers, which hold the rotated row (kernels/rotation.h), x:
// int8: x = s * q, s = f16(amax / 127), q = round-half-even(x / s) clamped to +-127, 0 where s is 0
// int4, a grid without zero: x = s * (2 u - 15), s = f16(amax / 15), u in [0, 16).
// A byte is two dims of one token, so that slots share none: dim i of K in the low half, i + 4 in the high one; of V i and i + 16, the
// high half of the last group unused where head_dim is an odd multiple of 16. One mask or shift of a register is an int8 operand.
//
// Plain data after construction; read by kernels, counted by kv. Units: bytes unless the name says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/ids.h"

namespace pagoda::kv {

// Raised whenever the bytes of a block change meaning; part of every key that leaves the process.
inline constexpr uint32_t kLayoutId = 4;

inline constexpr int kMaxHeadDim = 1024;

enum class KvType : uint8_t { kBf16, kInt8, kInt4 };

// Has a scale per token and KV head.
constexpr bool is_scaled(KvType type) { return type != KvType::kBf16; }

// What one layer stores. `q8` is {int8, int8}, `k8v4` {int8, int4}; a layer with a K bias keeps K in bf16 by default.
struct LayerFormat {
  KvType k = KvType::kInt8;
  KvType v = KvType::kInt8;
  friend bool operator==(const LayerFormat&, const LayerFormat&) = default;
};

// One layer inside a block.
struct LayerLayout {
  LayerFormat format;
  size_t offset = 0;      // of the layer's first KV head in the block
  size_t head_bytes = 0;  // from one KV head to the next
  size_t k_scales = 0;    // offsets inside a head; K starts at 0
  size_t v = 0;
  size_t v_scales = 0;
};

struct GroupLayout {
  int n_kv_heads = 0;
  int head_dim = 0;
  std::vector<LayerLayout> layers;  // by index in the group, not in the model
  size_t block_bytes = 0;           // multiple of 64

  // Requires head_dim % 16 == 0, head_dim <= kMaxHeadDim, n_kv_heads > 0.
  static GroupLayout make(int n_kv_heads, int head_dim, std::span<const LayerFormat> layers);

  // Exact bytes per token, without alignment (alignment adds none at the supported sizes).
  size_t bytes_per_token() const { return block_bytes / kBlockTokens; }
};

// Bytes of one token of one KV head: K and V, scales included.
size_t token_head_bytes(LayerFormat format, int head_dim);

// The first n_tokens slots of block `from` in all layers and heads to `to`, whose other bytes become 0. Both hold block_bytes and are not
// the same. Requires 0 <= n_tokens <= 32.
void copy_tokens(const GroupLayout& group, int n_tokens, const std::byte* from, std::byte* to);

// Dims of a token in 4 bytes of K; tokens of a dim in 4 bytes of V.
constexpr int k_packed_dims(KvType type) { return type == KvType::kInt4 ? 8 : type == KvType::kInt8 ? 4 : 2; }
constexpr int v_packed_tokens(KvType type) { return type == KvType::kBf16 ? 2 : 4; }

// 4-byte cells of V side by side, of v_packed_tokens tokens.
constexpr int v_row_cells(KvType type, int head_dim) {
  return type == KvType::kInt4 ? (head_dim + 31) / 32 * 16 : head_dim;
}

// Where element (slot, dim) of a head's K or V lies, counted in elements from the part's start; of int4 in halves of bytes, low first.
constexpr size_t k_index(KvType type, int slot, int dim) {
  const int packed = k_packed_dims(type);
  const int in_cell = type == KvType::kInt4 ? dim % 4 * 2 + dim % 8 / 4 : dim % packed;
  return static_cast<size_t>((dim / packed * kBlockTokens + slot) * packed + in_cell);
}
constexpr size_t v_index(KvType type, int head_dim, int slot, int dim) {
  const int packed = v_packed_tokens(type);
  const int row = slot / packed * v_row_cells(type, head_dim);
  if (type == KvType::kInt4) {
    return static_cast<size_t>(((row + dim / 32 * 16 + dim % 16) * packed + slot % packed) * 2 + dim / 16 % 2);
  }
  return static_cast<size_t>((row + dim) * packed + slot % packed);
}

std::string to_string(LayerFormat format);  // "bf16", "q8", "q4", "k8v4", "k16v8" ...

}  // namespace pagoda::kv
