// BlockStore: the bytes of the KV blocks that kv::BlockPool deals: one arena of huge-page memory, cut into extents.
// A block lies at extent * extent_bytes + slot * block_bytes of its group. Pages become resident when first written.
// Threads: a block's bytes belong to whoever the pool says; the store itself is immutable after make().
#pragma once

#include <cstddef>
#include <vector>

#include "base/check.h"
#include "kv/block_io.h"
#include "tensor/aligned_buffer.h"

namespace pagoda::engine {

class BlockStore final : public kv::BlockIo {
 public:
  // block_bytes[model][group].
  static Result<BlockStore> make(size_t n_extents, size_t extent_bytes, std::vector<std::vector<size_t>> block_bytes);

  std::byte* address(kv::ModelId model, kv::GroupId group, kv::BlockId block) {
    return arena_.data() + offset(model, group, block);
  }
  size_t block_bytes(kv::ModelId model, kv::GroupId group) const { return block_bytes_[model.value][group.value]; }

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
  std::vector<std::vector<size_t>> block_bytes_;
};

}  // namespace pagoda::engine
