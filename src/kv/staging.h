// Staging: copies of sealed blocks on their way to the tiers, under block ids of their own, so that a store reads them like any block while
// the pool gives the originals away. A put thus holds no KV memory, however slow its tier is.
// Units: bytes.   Owns: the copies; `limit_bytes` bounds them, and what does not fit is not copied.
// Invariant: a staged id is never one of the pool's (block_pool.h: the last extent does not exist there).
// Threads: add and remove from the engine thread; BlockIo from any, for ids between the two.   Cost: add copies one block.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "kv/block_io.h"

namespace pagoda::kv {

class Staging final : public BlockIo {
 public:
  // `arena` must outlive it.
  Staging(BlockIo& arena, size_t limit_bytes) : arena_(arena), limit_bytes_(limit_bytes) {}

  // A copy of the arena's block; nullopt if there is no room for one.
  std::optional<BlockId> add(ModelId model, GroupId group, BlockId block, size_t bytes);
  // The copy is wanted no more.
  void remove(BlockId staged);

  size_t used_bytes() const { return used_bytes_; }

  void copy_out(ModelId model, GroupId group, BlockId block, std::span<std::byte> to) const override;
  void copy_in(ModelId model, GroupId group, BlockId block, std::span<const std::byte> from) override;
  uint32_t checksum(ModelId model, GroupId group, BlockId block) const override;

 private:
  static constexpr uint32_t kExtent = (1u << (32 - BlockId::kSlotBits)) - 1;
  struct Slot {
    std::unique_ptr<std::byte[]> bytes;  // kept for the next block of its size
    size_t size = 0;
    bool is_used = false;
  };

  static bool is_staged(BlockId block) { return block.extent() == kExtent; }
  std::span<const std::byte> bytes_of(BlockId block) const {
    const Slot& slot = slots_[block.slot()];
    return {slot.bytes.get(), slot.size};
  }
  Slot* find_slot(size_t bytes);

  BlockIo& arena_;
  size_t limit_bytes_;
  size_t used_bytes_ = 0;
  size_t kept_bytes_ = 0;  // used ones included
  std::array<Slot, 1024> slots_;
};

}  // namespace pagoda::kv
