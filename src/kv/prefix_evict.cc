// PrefixIndex, the evicting half: who goes, and what goes with it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/prefix_index.h"

namespace pagoda::kv {
namespace {

// At most this part of a model's nodes is protected, and none that was not used while the cache was filled anew that many times:
// beyond, the oldest protected leaves go back to probation.
constexpr uint64_t kProtectedOf5 = 4;
constexpr uint64_t kProtectedTurns = 4;

bool goes_before(HoldRank rank, double worth, HoldRank other_rank, double other_worth) {
  return rank != other_rank ? rank < other_rank : worth < other_worth;
}

}  // namespace

// Negative age, weighed: what was used long ago and is cheap to recompute is worth least.
double PrefixIndex::worth(uint64_t last_use, const Owner& owner) const {
  return -static_cast<double>(pool_.now() - last_use + 1) / owner.spec.cost_per_byte;
}

// Of the owner's evictable nodes, the one to go next; kNoNode if there is none.
NodeId PrefixIndex::oldest_leaf(Owner& owner) {
  LeafHeap &probation = owner.heap(LruSegment::kProbation), &kept = owner.heap(LruSegment::kProtected);
  while (!kept.empty()) {
    const NodeId id = kept.top();
    const bool is_stale = pool_.now() - node(id).last_use > owner.n_nodes * kProtectedTurns;
    if (!is_stale && owner.n_protected * 5 <= (owner.n_nodes - owner.n_held) * kProtectedOf5) break;
    kept.remove(trie_, id);
    node(id).segment = LruSegment::kProbation;
    node(id).n_hits = 0;
    --owner.n_protected;
    probation.push(trie_, id);
  }
  for (const LeafHeap& heap : owner.leaves) {
    if (!heap.empty()) return heap.top();
  }
  return kNoNode;
}

PrefixIndex::Candidate PrefixIndex::own_candidate(ClassId size_class) {
  const auto [index, group, is_used] = classes_[size_class.value];
  Owner& owner = owners_[index];
  const bool is_windowed = is_window(owner, group.value);
  const NodeId id = is_windowed ? oldest_window(owner, group.value) : oldest_leaf(owner);
  if (id == kNoNode) return {};
  const HoldRank rank = is_windowed ? window_rank_of(node(id)) : rank_of(node(id));
  return {rank, worth(node(id).last_use, owner), id, group, true};
}

bool PrefixIndex::make_room(std::span<const BlockNeed> needs) {
  if (pool_.missing_bytes(needs) == 0) return true;
  if (pool_.missing_bytes_without_cached(needs) > 0) return false;
  while (pool_.missing_bytes(needs) > 0) {
    // Everything that stands in the way is cached, and everything cached can go.
    CHECK(evict_one(needs));
  }
  return true;
}

// One block of a class that lacks some, or one idle extent of another class, whichever is worth less.
bool PrefixIndex::evict_one(std::span<const BlockNeed> needs) {
  Candidate own;
  std::optional<BlockPool::IdleExtent> idle;
  double idle_worth = 0;
  HoldRank idle_rank = HoldRank::kNone;
  for (const BlockNeed& need : needs) {
    if (need.n_blocks <= pool_.free_blocks(need.size_class)) continue;
    const Candidate candidate = own_candidate(need.size_class);
    if (candidate.is_found && (!own.is_found || goes_before(candidate.rank, candidate.worth, own.rank, own.worth)))
      own = candidate;
    for (uint32_t c = 0; c < classes_.size(); ++c) {
      if (!classes_[c].is_used || ClassId(c) == need.size_class) continue;
      const auto extent = pool_.oldest_idle_extent(ClassId(c));
      if (!extent) continue;
      const double extent_worth = worth(extent->since, owners_[classes_[c].owner]);
      const HoldRank extent_rank = rank_of_extent(extent->extent);
      if (!idle || goes_before(extent_rank, extent_worth, idle_rank, idle_worth)) {
        idle = extent;
        idle_worth = extent_worth;
        idle_rank = extent_rank;
      }
    }
  }
  if (idle && (!own.is_found || goes_before(idle_rank, idle_worth, own.rank, own.worth))) {
    evict_extent(idle->extent);
    return true;
  }
  if (!own.is_found) return false;
  const uint64_t before = pool_.stats().cached_blocks;
  if (is_window(owner_of(own.node), own.group.value)) {
    evict_window_block(own.node, own.group.value);
  } else {
    evict_leaf(own.node);
  }
  stats_.evicted_for_room += before - pool_.stats().cached_blocks;
  return true;
}

void PrefixIndex::evict_extent(uint32_t extent) {
  const uint64_t before = pool_.stats().cached_blocks;
  scratch_.clear();
  pool_.list_cached(extent, scratch_);
  const auto [index, group, is_used] = classes_[pool_.class_of(scratch_.front()).value];
  for (const BlockId block : scratch_) {
    if (pool_.state(block) != BlockState::kCached) continue;  // it went with one above it
    const NodeId id(pool_.keeper(block));
    if (is_window(owners_[index], group.value)) {
      evict_window_block(id, group.value);
    } else {
      evict_subtree(id);
    }
  }
  stats_.evicted_for_others += before - pool_.stats().cached_blocks;
}

void PrefixIndex::evict_subtree(NodeId top) {
  for (NodeId id = top;;) {
    while (node(id).first_child != kNoNode) id = node(id).first_child;
    const NodeId parent = node(id).parent;
    const bool is_last = id == top;
    evict_leaf(id);
    if (is_last) return;
    id = parent;
  }
}

// Requires an evictable node.
void PrefixIndex::evict_leaf(NodeId id) {
  CHECK(is_evictable(id));
  const Owner& owner = owner_of(id);
  for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) {
    if (node(id).blocks[g].is_none()) continue;
    if (is_window(owner, g)) unlink_window(id, g);
    pool_.evict(take_block(id, g));
  }
  erase(id);
}

void PrefixIndex::evict_window_block(NodeId id, uint32_t group) {
  unlink_window(id, group);
  pool_.evict(take_block(id, group));
  node(id).replay_groups &= static_cast<uint8_t>(~(1u << group));
  prune(id);
}

// Takes a node without blocks, holders and children out of the trie, and whoever above it becomes useless with it.
void PrefixIndex::erase(NodeId id) {
  const PrefixNode& gone = node(id);
  const NodeId parent = gone.parent;
  if (parent != kNoNode) {
    Owner& owner = owner_of(id);
    owner.heap_of(gone).remove(trie_, id);
    --owner.n_nodes;
    owner.n_protected -= gone.segment == LruSegment::kProtected && gone.n_sessions == 0 ? 1 : 0;
    owner.n_held -= gone.n_sessions > 0 ? 1 : 0;
    stats_.pin_bytes -= pin_bytes(gone);
    evicted_[evicted_at(gone.key)] = gone.key.high;
    node(parent).last_use = std::max(node(parent).last_use, gone.last_use);
  }
  trie_.erase(id);
  if (parent == kNoNode) return;
  refresh(parent);
  prune(parent);
}

void PrefixIndex::prune(NodeId id) {
  const PrefixNode& n = node(id);
  if (n.n_holders > 0 || n.n_children > 0) return;
  if (std::ranges::all_of(n.blocks, [](BlockId block) { return block.is_none(); })) erase(id);
}

void PrefixIndex::clear() {
  for (Owner& owner : owners_) {
    for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) {
      for (NodeId id = oldest_window(owner, g); id != kNoNode; id = oldest_window(owner, g)) evict_window_block(id, g);
    }
    while (true) {
      const NodeId id = oldest_leaf(owner);
      if (id == kNoNode) break;
      evict_leaf(id);
    }
  }
}

}  // namespace pagoda::kv
