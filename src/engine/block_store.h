// BlockStore: the bytes of the KV blocks that kv::BlockPool deals: one arena of huge-page memory, cut into extents.
// A block lies at extent * extent_bytes + slot * block_bytes of its group. Pages become resident when first written.
// The first write into 2 MiB of fresh memory takes 0.3 ms, on a virtual machine 8 ms and more: touch_ahead() does it before a request
// would wait for it.
// Threads: a block's bytes belong to whoever the pool says; the store itself is immutable after make() but for touch_ahead().
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"
#include "kv/block_io.h"
#include "tensor/aligned_buffer.h"

namespace pagoda::engine {

// Memory that touch_ahead() keeps ready, at most, and of the whole.
inline constexpr size_t kReadyBytes = size_t{128} << 20;
inline constexpr size_t kReadyPart = 8;

class BlockStore final : public kv::BlockIo {
 public:
  // block_bytes[model][group].
  static Result<BlockStore> make(size_t n_extents, size_t extent_bytes, std::vector<std::vector<size_t>> block_bytes);

  std::byte* address(kv::ModelId model, kv::GroupId group, kv::BlockId block) {
    return arena_.data() + offset(model, group, block);
  }
  size_t block_bytes(kv::ModelId model, kv::GroupId group) const { return block_bytes_[model.value][group.value]; }

  // Makes up to 2 MiB of the extents [n_used, n_used + kReadyBytes) resident, none of which was ever dealt; n_used never falls. False:
  // they all are. One thread.
  bool touch_ahead(size_t n_used);

  void copy_out(kv::ModelId model, kv::GroupId group, kv::BlockId block, std::span<std::byte> to) const override;
  void copy_in(kv::ModelId model, kv::GroupId group, kv::BlockId block, std::span<const std::byte> from) override;
  uint32_t checksum(kv::ModelId model, kv::GroupId group, kv::BlockId block) const override;

 private:
  size_t offset(kv::ModelId model, kv::GroupId group, kv::BlockId block) const {
    const size_t at = block.extent() * extent_bytes_ + block.slot() * block_bytes(model, group);
    DCHECK(!block.is_none() && at + block_bytes(model, group) <= arena_.size());
    return at;
  }

  tensor::AlignedBuffer arena_;
  size_t extent_bytes_ = 0;
  size_t touched_bytes_ = 0;  // of the arena, from its start
  std::vector<std::vector<size_t>> block_bytes_;
};

}  // namespace pagoda::engine
