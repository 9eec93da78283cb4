#include "kv/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kMaxExtents = (size_t{1} << (32 - BlockId::kSlotBits)) - 1;  // the last one's last slot is kNoBlock
constexpr size_t kMaxSlots = size_t{1} << BlockId::kSlotBits;

size_t slots_in(size_t extent_bytes, size_t block_bytes) { return std::min(extent_bytes / block_bytes, kMaxSlots); }

}  // namespace

BlockPool::BlockPool(const PoolConfig& config) : config_(config) {
  CHECK(config.extent_bytes > 0);
  const size_t n_extents = std::min(config.budget_bytes / config.extent_bytes, kMaxExtents);
  extents_.resize(n_extents);
  for (size_t i = n_extents; i-- > 0;) {
    extents_[i].next = free_extent_head_;
    free_extent_head_ = static_cast<uint32_t>(i);
  }
  stats_.budget_bytes = config.budget_bytes;
  stats_.free_bytes = n_extents * config.extent_bytes;
  stats_.overhead_bytes = config.budget_bytes - stats_.free_bytes;
  stats_.free_extents = n_extents;
  publish();
}

ClassId BlockPool::add_class(size_t block_bytes) {
  CHECK(block_bytes > 0 && block_bytes <= config_.extent_bytes);
  SizeClass size_class;
  size_class.block_bytes = block_bytes;
  size_class.n_slots = static_cast<uint32_t>(slots_in(config_.extent_bytes, block_bytes));
  classes_.push_back(size_class);
  return ClassId(static_cast<uint32_t>(classes_.size() - 1));
}

size_t BlockPool::extents_wanted(const BlockNeed& need, uint32_t free_blocks) const {
  if (need.n_blocks <= free_blocks) return 0;
  const size_t n_slots = classes_[need.size_class.value].n_slots;
  return (need.n_blocks - free_blocks + n_slots - 1) / n_slots;
}

size_t BlockPool::missing_bytes(std::span<const BlockNeed> needs) const {
  size_t wanted = 0;
  for (const BlockNeed& need : needs) wanted += extents_wanted(need, classes_[need.size_class.value].free_blocks);
  return wanted <= stats_.free_extents ? 0 : (wanted - stats_.free_extents) * config_.extent_bytes;
}

bool BlockPool::could_hold(std::span<const BlockNeed> needs) const {
  size_t wanted = 0;
  for (const BlockNeed& need : needs) wanted += extents_wanted(need, 0);
  return wanted <= extents_.size();
}

std::optional<BlockId> BlockPool::allocate(ClassId id) {
  SizeClass& size_class = classes_[id.value];
  if (size_class.head == kNone && !deal_extent(id)) return std::nullopt;
  const uint32_t index = size_class.head;
  Extent& extent = extents_[index];
  uint32_t slot = extent.free_head;
  if (slot != kNone) {
    extent.free_head = extent.slots[slot].next_free;
  } else {
    slot = extent.n_touched++;
  }
  extent.slots[slot] = {.refs = 1, .next_free = kNone, .state = BlockState::kOpen};
  if (++extent.n_live == size_class.n_slots) unlink(size_class, index);
  --size_class.free_blocks;
  ++size_class.live_blocks;
  ++stats_.live_blocks;
  stats_.live_bytes += size_class.block_bytes;
  stats_.free_bytes -= size_class.block_bytes;
  publish();
  return BlockId::at(index, slot);
}

void BlockPool::ref(BlockId block) {
  CHECK(state(block) == BlockState::kSealed);
  ++slot_of(block).refs;
}

void BlockPool::seal(BlockId block) {
  CHECK(state(block) == BlockState::kOpen);
  slot_of(block).state = BlockState::kSealed;
}

void BlockPool::unref(BlockId block) {
  Slot& slot = slot_of(block);
  CHECK(slot.refs > 0);
  if (--slot.refs > 0) return;
  Extent& extent = extents_[block.extent()];
  SizeClass& size_class = classes_[extent.size_class.value];
  slot.state = BlockState::kFree;
  slot.next_free = extent.free_head;
  extent.free_head = block.slot();
  if (extent.n_live-- == size_class.n_slots) link_back(size_class, block.extent());
  ++size_class.free_blocks;
  --size_class.live_blocks;
  --stats_.live_blocks;
  stats_.live_bytes -= size_class.block_bytes;
  stats_.free_bytes += size_class.block_bytes;
  if (extent.n_live == 0) return_extent(block.extent());
  publish();
}

// Gives the class an empty extent, at the head of its list (which was empty). False if there is none.
bool BlockPool::deal_extent(ClassId id) {
  if (free_extent_head_ == kNone) return false;
  const uint32_t index = free_extent_head_;
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[id.value];
  free_extent_head_ = extent.next;
  extent.size_class = id;
  extent.n_touched = 0;
  extent.free_head = kNone;
  if (extent.slots.size() < size_class.n_slots) extent.slots.resize(size_class.n_slots);
  link_back(size_class, index);
  size_class.free_blocks += size_class.n_slots;
  const size_t tail_bytes = config_.extent_bytes - size_class.n_slots * size_class.block_bytes;
  stats_.overhead_bytes += tail_bytes;
  stats_.free_bytes -= tail_bytes;
  --stats_.free_extents;
  return true;
}

void BlockPool::return_extent(uint32_t index) {
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[extent.size_class.value];
  unlink(size_class, index);
  size_class.free_blocks -= size_class.n_slots;
  const size_t tail_bytes = config_.extent_bytes - size_class.n_slots * size_class.block_bytes;
  stats_.overhead_bytes -= tail_bytes;
  stats_.free_bytes += tail_bytes;
  ++stats_.free_extents;
  extent.size_class = ClassId(kNone);
  extent.next = free_extent_head_;
  free_extent_head_ = index;
}

void BlockPool::link_back(SizeClass& size_class, uint32_t index) {
  extents_[index].prev = size_class.tail;
  extents_[index].next = kNone;
  (size_class.tail == kNone ? size_class.head : extents_[size_class.tail].next) = index;
  size_class.tail = index;
}

void BlockPool::unlink(SizeClass& size_class, uint32_t index) {
  Extent& extent = extents_[index];
  (extent.prev == kNone ? size_class.head : extents_[extent.prev].next) = extent.next;
  (extent.next == kNone ? size_class.tail : extents_[extent.next].prev) = extent.prev;
  extent.prev = extent.next = kNone;
}

// The extent's own counts against its slots.
Status BlockPool::check_extent(uint32_t index) const {
  const Extent& extent = extents_[index];
  if (extent.size_class.value == kNone) {
    if (extent.n_live != 0) return fail(ErrorCode::kInternal, "extent {}: empty, but {} live", index, extent.n_live);
    return {};
  }
  const uint32_t n_slots = classes_[extent.size_class.value].n_slots;
  uint32_t n_live = 0;
  for (uint32_t slot = 0; slot < extent.n_touched; ++slot) {
    const Slot& s = extent.slots[slot];
    const bool held = s.state == BlockState::kOpen || s.state == BlockState::kSealed;
    if (held != (s.refs > 0))
      return fail(ErrorCode::kInternal, "block {}/{}: {} refs in its state", index, slot, s.refs);
    if (s.state == BlockState::kOpen && s.refs != 1) {
      return fail(ErrorCode::kInternal, "block {}/{}: open with {} holders", index, slot, s.refs);
    }
    n_live += held ? 1 : 0;
  }
  uint32_t n_free = n_slots - extent.n_touched;
  for (uint32_t slot = extent.free_head; slot != kNone && n_free <= n_slots; slot = extent.slots[slot].next_free)
    ++n_free;
  if (n_live != extent.n_live || n_live == 0 || n_live + n_free != n_slots) {
    return fail(ErrorCode::kInternal, "extent {}: {} live of {} counted, {} free", index, n_live, extent.n_live,
                n_free);
  }
  return {};
}

Status BlockPool::check_integrity() const {
  PoolStats sum{.budget_bytes = config_.budget_bytes};
  sum.overhead_bytes = config_.budget_bytes - extents_.size() * config_.extent_bytes;
  for (uint32_t i = 0; i < extents_.size(); ++i) {
    TRY(check_extent(i));
    const Extent& extent = extents_[i];
    if (extent.size_class.value == kNone) {
      sum.free_bytes += config_.extent_bytes;
      ++sum.free_extents;
      continue;
    }
    const SizeClass& size_class = classes_[extent.size_class.value];
    sum.live_blocks += extent.n_live;
    sum.live_bytes += extent.n_live * size_class.block_bytes;
    sum.free_bytes += (size_class.n_slots - extent.n_live) * size_class.block_bytes;
    sum.overhead_bytes += config_.extent_bytes - size_class.n_slots * size_class.block_bytes;
  }
  const PoolStats now = stats();
  if (sum.live_blocks != now.live_blocks || sum.live_bytes != now.live_bytes || sum.free_bytes != now.free_bytes ||
      sum.overhead_bytes != now.overhead_bytes || sum.free_extents != now.free_extents ||
      now.live_bytes + now.cached_bytes + now.free_bytes + now.overhead_bytes != now.budget_bytes) {
    return fail(ErrorCode::kInternal, "pool counts {} live bytes, {} free, {} overhead; its extents hold {}, {}, {}",
                now.live_bytes, now.free_bytes, now.overhead_bytes, sum.live_bytes, sum.free_bytes, sum.overhead_bytes);
  }
  return check_lists();
}

// Every list names exactly the extents that belong on it.
Status BlockPool::check_lists() const {
  size_t n_empty = 0;
  for (uint32_t i = free_extent_head_; i != kNone && n_empty <= extents_.size(); i = extents_[i].next) {
    if (extents_[i].size_class.value != kNone) return fail(ErrorCode::kInternal, "extent {} is dealt and empty", i);
    ++n_empty;
  }
  if (n_empty != stats_.free_extents) return fail(ErrorCode::kInternal, "{} empty extents listed", n_empty);
  for (uint32_t c = 0; c < classes_.size(); ++c) {
    uint32_t n_live = 0, n_free = 0, n_room = 0, n_listed = 0;
    for (const Extent& extent : extents_) {
      if (extent.size_class.value != c) continue;
      n_live += extent.n_live;
      n_free += classes_[c].n_slots - extent.n_live;
      n_room += extent.n_live < classes_[c].n_slots ? 1 : 0;
    }
    for (uint32_t i = classes_[c].head; i != kNone && n_listed <= n_room; i = extents_[i].next) ++n_listed;
    if (n_listed != n_room || n_live != classes_[c].live_blocks || n_free != classes_[c].free_blocks) {
      return fail(ErrorCode::kInternal, "class {}: {} extents with room, {} listed; {} live, {} free", c, n_room,
                  n_listed, n_live, n_free);
    }
  }
  return {};
}

size_t choose_extent_bytes(std::span<const size_t> block_bytes) {
  constexpr size_t kStep = size_t{2} << 20;
  constexpr size_t kMost = size_t{128} << 20;
  const size_t largest = block_bytes.empty() ? 0 : *std::max_element(block_bytes.begin(), block_bytes.end());
  const size_t first = std::max(kStep, (largest + kStep - 1) / kStep * kStep);
  size_t best = first;
  double best_waste = 1;
  for (size_t extent = first; extent <= std::max(first, kMost); extent += kStep) {
    double waste = 0;
    for (const size_t bytes : block_bytes) {
      waste = std::max(waste, 1 - static_cast<double>(slots_in(extent, bytes) * bytes) / static_cast<double>(extent));
    }
    if (waste < best_waste) {
      best = extent;
      best_waste = waste;
    }
    if (waste <= 0.02) break;
  }
  return best;
}

}  // namespace pagoda::kv
