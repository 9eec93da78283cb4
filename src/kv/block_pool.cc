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
    extents_[i].room.next = free_extent_head_;
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

// Without cached blocks, an extent is either empty or has held blocks, and every slot of it that is not held is free.
size_t BlockPool::missing_bytes_without_cached(std::span<const BlockNeed> needs) const {
  size_t wanted = 0;
  for (const BlockNeed& need : needs) {
    const SizeClass& size_class = classes_[need.size_class.value];
    wanted += extents_wanted(need, size_class.live_extents * size_class.n_slots - size_class.live_blocks);
  }
  const size_t empty = extents_.size() - live_extents_;
  return wanted <= empty ? 0 : (wanted - empty) * config_.extent_bytes;
}

bool BlockPool::could_hold(std::span<const BlockNeed> needs) const {
  size_t wanted = 0;
  for (const BlockNeed& need : needs) wanted += extents_wanted(need, 0);
  return wanted <= extents_.size();
}

std::optional<BlockId> BlockPool::allocate(ClassId id) {
  SizeClass& size_class = classes_[id.value];
  if (size_class.room.head == kNone && !deal_extent(id)) return std::nullopt;
  const uint32_t index = size_class.room.head;
  Extent& extent = extents_[index];
  uint32_t slot = extent.free_head;
  if (slot != kNone) {
    extent.free_head = extent.slots[slot].next_free;
  } else {
    slot = extent.n_touched++;
  }
  extent.slots[slot] = {.refs = 1, .next_free = kNone, .keeper = kNobody, .state = BlockState::kOpen};
  add_live(index, BlockState::kFree);
  publish();
  return BlockId::at(index, slot);
}

// One of the extent's free or cached blocks gets a holder.
void BlockPool::add_live(uint32_t index, BlockState from) {
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[extent.size_class.value];
  if (extent.is_idle()) unlink(size_class.idle, &Extent::idle, index);
  if (extent.n_live++ == 0) {
    ++size_class.live_extents;
    ++live_extents_;
  }
  ++size_class.live_blocks;
  ++stats_.live_blocks;
  stats_.live_bytes += size_class.block_bytes;
  if (from == BlockState::kCached) {
    --extent.n_cached;
    --size_class.cached_blocks;
    --stats_.cached_blocks;
    stats_.cached_bytes -= size_class.block_bytes;
  } else {
    --size_class.free_blocks;
    stats_.free_bytes -= size_class.block_bytes;
    if (extent.n_used() == size_class.n_slots) unlink(size_class.room, &Extent::room, index);
  }
}

void BlockPool::ref(BlockId block) {
  Slot& slot = slot_of(block);
  CHECK(slot.state == BlockState::kSealed || slot.state == BlockState::kCached);
  if (slot.refs++ > 0) return;
  slot.state = BlockState::kSealed;
  add_live(block.extent(), BlockState::kCached);
  publish();
}

void BlockPool::seal(BlockId block) {
  CHECK(state(block) == BlockState::kOpen);
  slot_of(block).state = BlockState::kSealed;
}

void BlockPool::keep(BlockId block, uint32_t keeper) {
  CHECK(state(block) == BlockState::kSealed && slot_of(block).keeper == kNobody && keeper != kNobody);
  slot_of(block).keeper = keeper;
}

void BlockPool::unref(BlockId block) {
  Slot& slot = slot_of(block);
  CHECK(slot.refs > 0);
  if (--slot.refs > 0) return;
  if (slot.keeper == kNobody) {
    remove_live(block.extent(), BlockState::kFree);
    free_slot(block);
  } else {
    slot.state = BlockState::kCached;
    remove_live(block.extent(), BlockState::kCached);
  }
  publish();
}

void BlockPool::evict(BlockId block) {
  CHECK(state(block) == BlockState::kCached);
  Extent& extent = extents_[block.extent()];
  SizeClass& size_class = classes_[extent.size_class.value];
  if (extent.is_idle() && extent.n_cached == 1) unlink(size_class.idle, &Extent::idle, block.extent());
  --extent.n_cached;
  --size_class.cached_blocks;
  --stats_.cached_blocks;
  stats_.cached_bytes -= size_class.block_bytes;
  free_slot(block);
  publish();
}

// One of the extent's held blocks lost its last holder.
void BlockPool::remove_live(uint32_t index, BlockState to) {
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[extent.size_class.value];
  --size_class.live_blocks;
  --stats_.live_blocks;
  stats_.live_bytes -= size_class.block_bytes;
  if (to == BlockState::kCached) {
    ++now_;
    ++extent.n_cached;
    ++size_class.cached_blocks;
    ++stats_.cached_blocks;
    stats_.cached_bytes += size_class.block_bytes;
  }
  if (--extent.n_live > 0) return;
  --size_class.live_extents;
  --live_extents_;
  if (!extent.is_idle()) return;
  extent.idle_since = now_;
  link_back(size_class.idle, &Extent::idle, index);
}

// A block that is neither held nor cached any more is the class's, and its extent, once empty, everybody's.
void BlockPool::free_slot(BlockId block) {
  Extent& extent = extents_[block.extent()];
  SizeClass& size_class = classes_[extent.size_class.value];
  extent.slots[block.slot()] = {
      .refs = 0, .next_free = extent.free_head, .keeper = kNobody, .state = BlockState::kFree};
  extent.free_head = block.slot();
  if (extent.n_used() + 1 == size_class.n_slots) link_back(size_class.room, &Extent::room, block.extent());
  ++size_class.free_blocks;
  stats_.free_bytes += size_class.block_bytes;
  if (extent.n_used() == 0) return_extent(block.extent());
}

std::optional<BlockPool::IdleExtent> BlockPool::oldest_idle_extent(ClassId size_class) const {
  const uint32_t index = classes_[size_class.value].idle.head;
  if (index == kNone) return std::nullopt;
  return IdleExtent{index, extents_[index].idle_since};
}

void BlockPool::list_cached(uint32_t index, std::vector<BlockId>& blocks) const {
  for (uint32_t slot = 0; slot < extents_[index].n_touched; ++slot) {
    if (extents_[index].slots[slot].state == BlockState::kCached) blocks.push_back(BlockId::at(index, slot));
  }
}

// Gives the class an empty extent, at the head of its list (which was empty). False if there is none.
bool BlockPool::deal_extent(ClassId id) {
  if (free_extent_head_ == kNone) return false;
  const uint32_t index = free_extent_head_;
  Extent& extent = extents_[index];
  SizeClass& size_class = classes_[id.value];
  free_extent_head_ = extent.room.next;
  used_extents_ = std::max(used_extents_, index + 1);
  extent.size_class = id;
  extent.n_touched = 0;
  extent.free_head = kNone;
  if (extent.slots.size() < size_class.n_slots) {
    n_slots_ += size_class.n_slots - extent.slots.size();
    extent.slots.resize(size_class.n_slots);
  }
  link_back(size_class.room, &Extent::room, index);
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
  unlink(size_class.room, &Extent::room, index);
  size_class.free_blocks -= size_class.n_slots;
  const size_t tail_bytes = config_.extent_bytes - size_class.n_slots * size_class.block_bytes;
  stats_.overhead_bytes -= tail_bytes;
  stats_.free_bytes += tail_bytes;
  ++stats_.free_extents;
  extent.size_class = ClassId(kNone);
  extent.room.next = free_extent_head_;
  free_extent_head_ = index;
}

void BlockPool::link_back(ExtentList& list, Links Extent::* links, uint32_t index) {
  extents_[index].*links = {.prev = list.tail, .next = kNone};
  (list.tail == kNone ? list.head : (extents_[list.tail].*links).next) = index;
  list.tail = index;
}

void BlockPool::unlink(ExtentList& list, Links Extent::* links, uint32_t index) {
  Links& own = extents_[index].*links;
  (own.prev == kNone ? list.head : (extents_[own.prev].*links).next) = own.next;
  (own.next == kNone ? list.tail : (extents_[own.next].*links).prev) = own.prev;
  own = {};
}

// The extent's own counts against its slots.
Status BlockPool::check_extent(uint32_t index) const {
  const Extent& extent = extents_[index];
  if (extent.size_class.value == kNone) {
    if (extent.n_used() != 0)
      return fail(ErrorCode::kInternal, "extent {}: empty, but {} used", index, extent.n_used());
    return {};
  }
  const uint32_t n_slots = classes_[extent.size_class.value].n_slots;
  uint32_t n_live = 0, n_cached = 0;
  for (uint32_t slot = 0; slot < extent.n_touched; ++slot) {
    const Slot& s = extent.slots[slot];
    const bool held = s.state == BlockState::kOpen || s.state == BlockState::kSealed;
    const bool cached = s.state == BlockState::kCached;
    if (held != (s.refs > 0) || (cached && s.keeper == kNobody)) {
      return fail(ErrorCode::kInternal, "block {}/{}: {} refs in its state", index, slot, s.refs);
    }
    if (s.state == BlockState::kOpen && s.refs != 1) {
      return fail(ErrorCode::kInternal, "block {}/{}: open with {} holders", index, slot, s.refs);
    }
    n_live += held ? 1 : 0;
    n_cached += cached ? 1 : 0;
  }
  uint32_t n_free = n_slots - extent.n_touched;
  for (uint32_t slot = extent.free_head; slot != kNone && n_free <= n_slots; slot = extent.slots[slot].next_free)
    ++n_free;
  if (n_live != extent.n_live || n_cached != extent.n_cached || extent.n_used() == 0 ||
      extent.n_used() + n_free != n_slots) {
    return fail(ErrorCode::kInternal, "extent {}: {} live of {} counted, {} cached of {}, {} free", index, n_live,
                extent.n_live, n_cached, extent.n_cached, n_free);
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
    sum.cached_blocks += extent.n_cached;
    sum.live_bytes += extent.n_live * size_class.block_bytes;
    sum.cached_bytes += extent.n_cached * size_class.block_bytes;
    sum.free_bytes += (size_class.n_slots - extent.n_used()) * size_class.block_bytes;
    sum.overhead_bytes += config_.extent_bytes - size_class.n_slots * size_class.block_bytes;
  }
  const PoolStats now = stats();
  if (now != sum || now.live_bytes + now.cached_bytes + now.free_bytes + now.overhead_bytes != now.budget_bytes) {
    return fail(ErrorCode::kInternal,
                "pool counts {} live bytes, {} cached, {} free, {} overhead; its extents hold {}, {}, {}, {}",
                now.live_bytes, now.cached_bytes, now.free_bytes, now.overhead_bytes, sum.live_bytes, sum.cached_bytes,
                sum.free_bytes, sum.overhead_bytes);
  }
  return check_lists();
}

// Every list names exactly the extents that belong on it.
Status BlockPool::check_lists() const {
  size_t n_empty = 0;
  for (uint32_t i = free_extent_head_; i != kNone && n_empty <= extents_.size(); i = extents_[i].room.next) {
    if (extents_[i].size_class.value != kNone) return fail(ErrorCode::kInternal, "extent {} is dealt and empty", i);
    ++n_empty;
  }
  if (n_empty != stats_.free_extents) return fail(ErrorCode::kInternal, "{} empty extents listed", n_empty);
  for (uint32_t c = 0; c < classes_.size(); ++c) TRY(check_class(c));
  return {};
}

Status BlockPool::check_class(uint32_t index) const {
  const SizeClass& size_class = classes_[index];
  uint32_t n_live = 0, n_cached = 0, n_free = 0, n_room = 0, n_idle = 0;
  for (const Extent& extent : extents_) {
    if (extent.size_class.value != index) continue;
    n_live += extent.n_live;
    n_cached += extent.n_cached;
    n_free += size_class.n_slots - extent.n_used();
    n_room += extent.n_used() < size_class.n_slots ? 1 : 0;
    n_idle += extent.is_idle() ? 1 : 0;
  }
  for (uint32_t i = size_class.room.head; i != kNone && n_room <= extents_.size(); i = extents_[i].room.next) --n_room;
  for (uint32_t i = size_class.idle.head; i != kNone && n_idle <= extents_.size(); i = extents_[i].idle.next) --n_idle;
  if (n_room != 0 || n_idle != 0 || n_live != size_class.live_blocks || n_cached != size_class.cached_blocks ||
      n_free != size_class.free_blocks) {
    return fail(ErrorCode::kInternal, "class {}: {} live, {} cached, {} free; lists off by {} and {}", index, n_live,
                n_cached, n_free, n_room, n_idle);
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
