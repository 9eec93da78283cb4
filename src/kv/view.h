// What a kernel reads of the cache: one KV head of one layer, through a sequence's list of blocks. Plain data, valid for one step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/layout.h"

namespace pagoda::kv {

// The blocks of one sequence in one attention group, seen at one layer and KV head.
struct KvView {
  // Entry i points at the block of tokens [32 i, 32 i + 32); null where a window group dropped it (every reader masks it).
  const std::byte* const* blocks = nullptr;
  size_t head_offset = 0;  // layer.offset + kv_head * layer.head_bytes, from a block's start
  LayerLayout layer;       // formats and the offsets inside the head
  int head_dim = 0;

  static KvView make(const std::byte* const* blocks, const GroupLayout& group, int layer_in_group, int kv_head) {
    const LayerLayout& layer = group.layers[static_cast<size_t>(layer_in_group)];
    return {blocks, layer.offset + static_cast<size_t>(kv_head) * layer.head_bytes, layer, group.head_dim};
  }

  const std::byte* k(int block) const { return blocks[block] + head_offset; }
  const uint16_t* k_scales(int block) const { return reinterpret_cast<const uint16_t*>(k(block) + layer.k_scales); }
  const std::byte* v(int block) const { return k(block) + layer.v; }
  const uint16_t* v_scales(int block) const { return reinterpret_cast<const uint16_t*>(k(block) + layer.v_scales); }
};

}  // namespace pagoda::kv
