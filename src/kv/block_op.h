// BlockOp: what the executor does to a block's bytes before a step's forward. Plain data in the StepPlan, run in list order.
#pragma once

#include <cstdint>

#include "kv/ids.h"

namespace pagoda::kv {

// save and load join these with the tiers.
enum class BlockOpKind : uint8_t {
  kZero,  // all bytes of `block` become 0: a masked slot's NaN times 0 is NaN
  kCopy,  // the first n_tokens of `source` to `block`, both of one group; all else of `block` becomes 0, as above
};

struct BlockOp {
  BlockOpKind kind = BlockOpKind::kZero;
  GroupId group;  // of the plan's model: it fixes the block's size
  BlockId block;
  BlockId source = kNoBlock;
  int32_t n_tokens = 0;
  friend bool operator==(const BlockOp&, const BlockOp&) = default;
};

}  // namespace pagoda::kv
