// ReuseDistance: what the hit rate would be with more or less memory, from a sample of the blocks that requests look up and use.
//
//   stack      the sampled blocks by last use, newest first
//   distance   of a block: the bytes of all blocks used since its last use, and its own
//   hit        in a cache of B bytes <=> distance <= B: least-recently-used caches of every size are the front of one stack
//
// A request's whole prompt blocks are looked up as the stack stands before it, then used, the deepest first: so a path's root is newer
// than its leaves, and goes last, as in the prefix index. Blocks in use count as cached. A block is sampled by its key, so one that is
// sampled is always sampled, and distances among the sampled, divided by the rate, estimate those among all. Below a rate of 1 the
// lookups that the sample lacks or has too many of count as the nearest ones (SHARDS_adj).
//
// Units: bytes of blocks.   Owns: the sampled keys.   Invariant: at most kMostTracked + 1 of them, whatever is cached; none that would
// miss at the largest budget asked about.
// Threads: engine thread only.   Errors: none.   Cost: one comparison for a block outside the sample, else amortised O(log kMostTracked).
// Source: Mattson et al. 1970 (stack distance); Waldspurger et al. 2015 (SHARDS), sec. 3; differs: a fixed rate and a truncated stack.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/error.h"

namespace pagoda::kv {

// Estimates, ever: take differences of two for a rate over a time.
struct ReuseCurve {
  static constexpr std::array<double, 4> kBudgets{0.5, 1, 2, 4};  // of the KV budget
  uint64_t looked_up_blocks = 0;
  uint64_t sampled_blocks = 0;  // of those
  std::array<double, kBudgets.size()> hit_blocks{};
  double sampling_rate = 1;

  // Of all lookups, 0 before the first.
  double hit_rate(size_t budget) const {
    return looked_up_blocks == 0 ? 0 : hit_blocks[budget] / static_cast<double>(looked_up_blocks);
  }
};

class ReuseDistance {
 public:
  static constexpr size_t kMostTracked = 8192;

  // `least_bytes`: of the smallest block, above 0. Were there smaller ones, distances would be cut off before the largest budget.
  ReuseDistance(uint64_t budget_bytes, size_t least_bytes, size_t most_tracked = kMostTracked);

  bool is_sampled(const Hash128& key) const { return key.high <= last_sampled_; }
  // Counts a lookup; uses nothing.
  void look_up(const Hash128& key, size_t bytes) {
    ++looked_up_;
    if (is_sampled(key)) look_up_sampled(key, bytes);
  }
  // The block is used now: it becomes the newest.
  void use(const Hash128& key, size_t bytes) {
    if (is_sampled(key)) use_sampled(key, bytes);
  }

  ReuseCurve curve() const;
  size_t n_tracked() const { return slots_.size(); }
  size_t memory_bytes() const;
  Status check_integrity() const;

 private:
  // One use, by time; empty once the block was used again.
  struct Use {
    uint64_t key = 0;
    uint64_t bytes = 0;
  };

  void look_up_sampled(const Hash128& key, size_t bytes);
  void use_sampled(const Hash128& key, size_t bytes);
  // Sampled bytes that the stack may hold in front of a block that hits.
  double most_in_front(size_t budget, uint64_t bytes) const {
    return (limits_[budget] - static_cast<double>(bytes)) * rate_;
  }
  uint64_t bytes_since(uint32_t slot) const;
  void add_bytes(uint32_t slot, uint64_t bytes);
  void erase(uint32_t slot);
  void drop_far();
  void compact();

  double rate_ = 1;
  uint64_t last_sampled_ = ~uint64_t{0};                      // of the keys' high halves
  std::array<double, ReuseCurve::kBudgets.size()> limits_{};  // bytes
  std::unordered_map<uint64_t, uint32_t> slots_;              // by key.low
  std::vector<Use> uses_;                                     // by slot: oldest first
  std::vector<uint64_t> sums_;                                // Fenwick tree over uses_' bytes, [uses_.size() + 1]
  uint32_t oldest_ = 0;                                       // no use before it
  uint32_t next_ = 0;
  uint64_t total_bytes_ = 0;
  uint64_t looked_up_ = 0;
  uint64_t n_sampled_ = 0;
  std::array<uint64_t, ReuseCurve::kBudgets.size()> hits_{};  // of the sampled
};

}  // namespace pagoda::kv
