#include "kv/staging.h"

#include <cstring>

#include "base/check.h"
#include "base/digest.h"

namespace pagoda::kv {

// One of the right size, or an empty one; memory kept for other sizes is let go first.
Staging::Slot* Staging::find_slot(size_t bytes) {
  Slot* empty = nullptr;
  for (Slot& slot : slots_) {
    if (slot.is_used) continue;
    if (slot.size == bytes) return &slot;
    if (slot.size == 0 && empty == nullptr) empty = &slot;
  }
  for (Slot& slot : slots_) {
    if (kept_bytes_ + bytes <= limit_bytes_ && empty != nullptr) break;
    if (slot.is_used || slot.size == 0) continue;
    kept_bytes_ -= slot.size;
    slot = {};
    empty = &slot;
  }
  if (empty == nullptr || kept_bytes_ + bytes > limit_bytes_) return nullptr;
  empty->bytes = std::make_unique_for_overwrite<std::byte[]>(bytes);
  empty->size = bytes;
  kept_bytes_ += bytes;
  return empty;
}

std::optional<BlockId> Staging::add(ModelId model, GroupId group, BlockId block, size_t bytes) {
  Slot* slot = find_slot(bytes);
  if (slot == nullptr) return std::nullopt;
  arena_.copy_out(model, group, block, {slot->bytes.get(), bytes});
  slot->is_used = true;
  used_bytes_ += bytes;
  return BlockId::at(kExtent, static_cast<uint32_t>(slot - slots_.data()));
}

void Staging::remove(BlockId staged) {
  CHECK(is_staged(staged) && slots_[staged.slot()].is_used);
  slots_[staged.slot()].is_used = false;
  used_bytes_ -= slots_[staged.slot()].size;
}

void Staging::copy_out(ModelId model, GroupId group, BlockId block, std::span<std::byte> to) const {
  if (!is_staged(block)) return arena_.copy_out(model, group, block, to);
  CHECK(to.size() == bytes_of(block).size());
  std::memcpy(to.data(), bytes_of(block).data(), to.size());
}

void Staging::copy_in(ModelId model, GroupId group, BlockId block, std::span<const std::byte> from) {
  CHECK(!is_staged(block));
  arena_.copy_in(model, group, block, from);
}

uint32_t Staging::checksum(ModelId model, GroupId group, BlockId block) const {
  return is_staged(block) ? crc32c(bytes_of(block)) : arena_.checksum(model, group, block);
}

}  // namespace pagoda::kv
