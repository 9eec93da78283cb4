// BlockIo: a block's bytes, by id, for those who move blocks out of the arena and back. Implemented by each executor's block store.
// Threads: any, for sealed blocks and blocks being loaded; nobody else writes those.     Cost: one copy or one pass over the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/ids.h"

namespace pagoda::kv {

class BlockIo {
 public:
  virtual ~BlockIo() = default;

  // Both spans are exactly the group's block_bytes long.
  virtual void copy_out(ModelId model, GroupId group, BlockId block, std::span<std::byte> to) const = 0;
  virtual void copy_in(ModelId model, GroupId group, BlockId block, std::span<const std::byte> from) = 0;
  // CRC32C of the whole block.
  virtual uint32_t checksum(ModelId model, GroupId group, BlockId block) const = 0;
};

}  // namespace pagoda::kv
