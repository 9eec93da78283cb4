// BlockTable: where one sequence's tokens lie in one attention group. Entry i holds tokens [32 i, 32 i + 32); a window group's
// dropped blocks are kNoBlock and always a prefix. Plain data: the Cache that fills it counts the references.
#pragma once

#include <cstddef>
#include <vector>

#include "kv/ids.h"

namespace pagoda::kv {

struct BlockTable {
  std::vector<BlockId> blocks;
  size_t n_dropped = 0;  // blocks[0, n_dropped) are kNoBlock
  size_t n_passed = 0;   // of those, blocks[0, n_passed) are the prefix index's affair alone

  size_t n_held() const { return blocks.size() - n_dropped; }
};

// Blocks that hold n_tokens from position 0.
constexpr size_t blocks_for(int32_t n_tokens) {
  return (static_cast<size_t>(n_tokens) + kBlockTokens - 1) / kBlockTokens;
}

// Blocks that no query at or behind `position` sees in a group with that window (0: none such): the last token of block b is 32 b + 31.
constexpr size_t blocks_out_of_window(int32_t window_tokens, int32_t position) {
  if (window_tokens == 0 || position < window_tokens) return 0;
  return static_cast<size_t>(position - window_tokens + 1) / kBlockTokens;
}

}  // namespace pagoda::kv
