// GroupLayout: where every byte of a KV block lies. One block holds 32 tokens of all layers of one attention group:
//
//   [layer 0][layer 1]...                      each layer in its own formats
//   layer:   [kv head 0][kv head 1]...
//   kv head: [K | K scales | V | V scales]     every part starts on 64 bytes
//
// K bf16  [head_dim/2][32 tokens][2]    K int8  [head_dim/4][32 tokens][4]     AMX and VNNI B operands: no horizontal sums
// V bf16  [32 tokens/2][head_dim][2]    V int8  [32 tokens/4][head_dim][4]     the same of P.V, whose sum runs over tokens
// scales  f16 [32 tokens], int8 only: x = s * q, s = f16(amax / 127), q = round-half-even(x / s) clamped to +-127, 0 where s is 0
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
inline constexpr uint32_t kLayoutId = 2;

enum class KvType : uint8_t { kBf16, kInt8 };

// What one layer stores. `q8` is {int8, int8}; a layer with a K bias takes {bf16, int8} by default.
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

  // Requires head_dim % 16 == 0, n_kv_heads > 0.
  static GroupLayout make(int n_kv_heads, int head_dim, std::span<const LayerFormat> layers);

  // Exact bytes per token, without alignment (alignment adds none at the supported sizes).
  size_t bytes_per_token() const { return block_bytes / kBlockTokens; }
};

// Bytes of one token of one KV head: K or V in a format, scales included.
size_t token_head_bytes(KvType type, int head_dim);

// The first n_tokens slots of block `from` in all layers and heads to `to`, whose other bytes become 0. Both hold block_bytes and are not
// the same. Requires 0 <= n_tokens <= 32.
void copy_tokens(const GroupLayout& group, int n_tokens, const std::byte* from, std::byte* to);

// Elements side by side in 4 bytes: dims of a token in K, tokens of a dim in V.
constexpr int packed_elements(KvType type) { return type == KvType::kInt8 ? 4 : 2; }

// Where element (slot, dim) of a head's K or V lies, counted in elements from the part's start.
constexpr size_t k_index(KvType type, int slot, int dim) {
  const int packed = packed_elements(type);
  return static_cast<size_t>((dim / packed * kBlockTokens + slot) * packed + dim % packed);
}
constexpr size_t v_index(KvType type, int head_dim, int slot, int dim) {
  const int packed = packed_elements(type);
  return static_cast<size_t>((slot / packed * head_dim + dim) * packed + slot % packed);
}

std::string to_string(LayerFormat format);  // "bf16", "q8", "k16v8", "k8v16"

}  // namespace pagoda::kv
