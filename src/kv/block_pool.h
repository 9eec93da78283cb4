// BlockPool: deals the blocks of one KV budget to every model, and counts their holders. It moves no bytes: those live in the
// executor's block store, at arena + extent * extent_bytes + slot * block_bytes of the block's group.
//
//   budget = [extent 0][extent 1]...[remainder]          an extent belongs to one size class while any of its blocks is held or cached
//   extent = [slot 0][slot 1]...[tail]                   slots of the class's block_bytes; empty extents go back to all classes
//
//   free -allocate-> open -seal-> sealed -unref-> free             a kept block goes to `cached` instead, and is sealed again with
//                                    ^-ref- cached <-unref-|       its next holder, or free when evicted
//
// Units: bytes and blocks, as named.   Owns: which block is whose; holders are counted, not known.
// Invariants: (1) live + cached + free + overhead == budget, at any moment.  (2) refs > 0 <=> open or sealed.
//             (3) an extent without a held or cached block belongs to no class.   check_integrity(): O(blocks), tests and idle.
// Threads: engine thread only; stats() from any thread.   Errors: a full pool is not an error -> nullopt; double release is a bug -> CHECK.
// Cost: allocate, ref, seal, unref, keep, evict O(1), no allocation once every extent was used by its largest class.
// Source: Kwon et al. 2023 (PagedAttention) sec. 4.2; differs: size classes in extents, so groups and models share one budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "kv/ids.h"
#include "kv/snapshot.h"

namespace pagoda::kv {

// A size class: one attention group in one format, so all its blocks have one size.
using ClassId = Id<struct ClassIdTag, uint32_t>;

// Tiers pass through `loading` and `spilling`, and a block whose checksum fails is `quarantined`.
enum class BlockState : uint8_t { kFree, kOpen, kSealed, kCached, kLoading, kSpilling, kQuarantined };

struct PoolConfig {
  size_t budget_bytes = 0;
  size_t extent_bytes = 0;  // choose_extent_bytes(); any size that holds a block in tests
};

// Sums to budget_bytes without the counts.
struct PoolStats {
  uint64_t budget_bytes = 0;
  uint64_t live_bytes = 0;      // blocks with a holder
  uint64_t cached_bytes = 0;    // blocks without a holder, kept for a later hit
  uint64_t free_bytes = 0;      // free slots and empty extents
  uint64_t overhead_bytes = 0;  // tails of dealt extents, remainder of the budget
  uint64_t live_blocks = 0;
  uint64_t cached_blocks = 0;
  uint64_t free_extents = 0;
  friend bool operator==(const PoolStats&, const PoolStats&) = default;
};

// Blocks wanted from one class; a list of these names each class once.
struct BlockNeed {
  ClassId size_class;
  uint32_t n_blocks = 0;
};

class BlockPool {
 public:
  // Requires extent_bytes > 0. A budget below one extent is a pool where nothing fits; ids name 2^18 - 1 extents (512 GiB at 2 MiB),
  // what is beyond is overhead.
  explicit BlockPool(const PoolConfig& config);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Requires 0 < block_bytes <= extent_bytes.
  ClassId add_class(size_t block_bytes);

  // Bytes of whole extents that must become free before allocate() could serve all of `needs`; 0 if it can now.
  size_t missing_bytes(std::span<const BlockNeed> needs) const;
  // The same, were every cached block evicted first.
  size_t missing_bytes_without_cached(std::span<const BlockNeed> needs) const;
  // Whether the whole budget, were it empty, would hold `needs` at once.
  bool could_hold(std::span<const BlockNeed> needs) const;

  // An open block with one holder; nullopt if the pool is full. Its bytes are whatever was there before.
  std::optional<BlockId> allocate(ClassId size_class);
  // One more holder. Requires a sealed or cached block: an open one has a single writer.
  void ref(BlockId block);
  // One holder fewer; without any left the block is cached if it is kept, else free.
  void unref(BlockId block);
  // Its 32 tokens are committed: from now on immutable. Requires an open block.
  void seal(BlockId block);
  // Outlives its holders until evicted. `keeper` is the caller's name for it, not kNobody. Requires a sealed block that is not kept.
  void keep(BlockId block, uint32_t keeper);
  // A cached block becomes free.
  void evict(BlockId block);

  static constexpr uint32_t kNobody = ~uint32_t{0};
  uint32_t keeper(BlockId block) const { return slot_of(block).keeper; }

  // Of the class's extents where blocks are cached and none is held, the one that is so for longest. What evicting it whole gives to
  // other classes.
  struct IdleExtent {
    uint32_t extent = 0;
    uint64_t since = 0;  // now() when its last holder left
  };
  std::optional<IdleExtent> oldest_idle_extent(ClassId size_class) const;
  // Appends the extent's cached blocks.
  void list_cached(uint32_t extent, std::vector<BlockId>& blocks) const;
  // Counts the blocks that became cached so far: the clock of least-recently-used.
  uint64_t now() const { return now_; }

  BlockState state(BlockId block) const { return slot_of(block).state; }
  uint32_t refs(BlockId block) const { return slot_of(block).refs; }
  ClassId class_of(BlockId block) const { return extents_[block.extent()].size_class; }
  size_t block_bytes(ClassId size_class) const { return classes_[size_class.value].block_bytes; }
  size_t n_classes() const { return classes_.size(); }
  uint32_t live_blocks(ClassId size_class) const { return classes_[size_class.value].live_blocks; }
  uint32_t cached_blocks(ClassId size_class) const { return classes_[size_class.value].cached_blocks; }
  uint32_t free_blocks(ClassId size_class) const {
    return classes_[size_class.value].free_blocks;
  }  // without a new extent

  uint32_t slots_per_extent(ClassId size_class) const { return classes_[size_class.value].n_slots; }
  // Whose extent it is now; its slots' states are state(BlockId::at(extent, slot)).
  std::optional<ClassId> class_of_extent(uint32_t extent) const {
    const ClassId id = extents_[extent].size_class;
    return id.value == kNone ? std::nullopt : std::optional(id);
  }
  // Of the pool's own lists, outside the budget.
  size_t descriptor_bytes() const { return extents_.size() * sizeof(Extent) + n_slots_ * sizeof(Slot); }

  size_t extent_bytes() const { return config_.extent_bytes; }
  size_t n_extents() const { return extents_.size(); }
  size_t used_extents() const { return used_extents_; }  // those ever dealt are [0, used_extents)
  PoolStats stats() const { return snapshot_.load(); }

  Status check_integrity() const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Slot {
    uint32_t refs = 0;
    uint32_t next_free = kNone;  // slot of the same extent
    uint32_t keeper = kNobody;
    BlockState state = BlockState::kFree;
  };
  struct Links {
    uint32_t prev = kNone, next = kNone;
  };
  struct ExtentList {
    uint32_t head = kNone, tail = kNone;
  };
  struct Extent {
    ClassId size_class{kNone};
    uint32_t n_live = 0;
    uint32_t n_cached = 0;
    uint32_t n_touched = 0;      // slots [n_touched, n_slots) were never dealt since the extent was
    uint32_t free_head = kNone;  // freed slots
    uint64_t idle_since = 0;     // while it is on its class's list of idle extents
    Links room;                  // in its class's list of extents with room, or in the list of empty extents
    Links idle;
    std::vector<Slot> slots;

    uint32_t n_used() const { return n_live + n_cached; }
    bool is_idle() const { return n_live == 0 && n_cached > 0; }
  };
  struct SizeClass {
    size_t block_bytes = 0;
    uint32_t n_slots = 0;  // blocks per extent
    uint32_t live_blocks = 0;
    uint32_t cached_blocks = 0;
    uint32_t free_blocks = 0;   // free slots in its extents
    uint32_t live_extents = 0;  // extents with a held block
    ExtentList room;            // extents with room; the first one is filled before the next is touched
    ExtentList idle;            // oldest first
  };

  Slot& slot_of(BlockId block) { return extents_[block.extent()].slots[block.slot()]; }
  const Slot& slot_of(BlockId block) const { return extents_[block.extent()].slots[block.slot()]; }
  size_t extents_wanted(const BlockNeed& need, uint32_t free_blocks) const;
  bool deal_extent(ClassId size_class);
  void return_extent(uint32_t index);
  void add_live(uint32_t index, BlockState from);
  void remove_live(uint32_t index, BlockState to);
  void free_slot(BlockId block);
  void link_back(ExtentList& list, Links Extent::* links, uint32_t index);
  void unlink(ExtentList& list, Links Extent::* links, uint32_t index);
  void publish() { snapshot_.store(stats_); }
  Status check_extent(uint32_t index) const;
  Status check_class(uint32_t index) const;
  Status check_lists() const;

  PoolConfig config_;
  std::vector<Extent> extents_;
  std::vector<SizeClass> classes_;
  uint32_t free_extent_head_ = kNone;
  uint32_t live_extents_ = 0;
  uint32_t used_extents_ = 0;
  size_t n_slots_ = 0;  // with a descriptor
  uint64_t now_ = 0;
  PoolStats stats_;
  Snapshot<PoolStats> snapshot_;
};

// The smallest multiple of 2 MiB, up to 128 MiB, that holds a block of every size and wastes at most 2 % of each extent;
// where none does, the one that wastes least. A block above 128 MiB gets an extent of its own, rounded up to 2 MiB.
size_t choose_extent_bytes(std::span<const size_t> block_bytes);

}  // namespace pagoda::kv
