// PrefixIndex, what sessions hold: counts on nodes, which decide how late a node goes and never whether.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/prefix_index.h"

namespace pagoda::kv {

HoldRank PrefixIndex::rank(NodeId id) const { return rank_of(trie_.node(id)); }

size_t PrefixIndex::node_bytes(NodeId id) const {
  size_t bytes = 0;
  for (const BlockId block : trie_.node(id).blocks) {
    if (!block.is_none()) bytes += pool_.block_bytes(pool_.class_of(block));
  }
  return bytes;
}

void PrefixIndex::find_path(NodeId root, std::span<const TokenId> token_ids, std::vector<NodeId>& path) const {
  NodeId at = root;
  for (size_t b = 0; at != kNoNode && (b + 1) * kBlockTokens <= token_ids.size(); ++b) {
    at = trie_.find(at, token_ids.subspan(b * kBlockTokens).first<kBlockTokens>());
    if (at != kNoNode) path.push_back(at);
  }
}

void PrefixIndex::hold_path(std::span<const NodeId> path, PathHold& hold) {
  CHECK(path.size() == hold.n_blocks && hold.n_pinned <= hold.n_blocks);
  hold.stamp = last_birth_;
  for (size_t b = 0; b < path.size(); ++b) recount(path[b], hold, b, Count::kMore);
}

void PrefixIndex::drop_path(NodeId root, std::span<const TokenId> token_ids, const PathHold& hold) {
  CHECK(token_ids.size() >= hold.n_blocks * kBlockTokens);
  NodeId at = root;
  for (size_t b = 0; b < hold.n_blocks && at != kNoNode; ++b) {
    at = trie_.find(at, token_ids.subspan(b * kBlockTokens).first<kBlockTokens>());
    if (at == kNoNode || node(at).birth > hold.stamp) return;  // evicted since, and all below it
    recount(at, hold, b, Count::kFewer);
  }
}

// Of a node with so many pins and windows held: windows' blocks come and go while it stays pinned.
uint64_t PrefixIndex::pin_bytes(const Owner& owner, uint32_t n_pins, uint32_t n_windows) const {
  if (n_pins == 0) return 0;
  uint64_t bytes = 0;
  for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) {
    if (!is_window(owner, g) || n_windows > 0) bytes += pool_.block_bytes(owner.spec.groups[g].size_class);
  }
  return bytes;
}

uint64_t PrefixIndex::pin_growth(NodeId id, const PathHold& hold, size_t block) const {
  const PrefixNode& n = trie_.node(id);
  const uint32_t n_pins = n.n_pins + (block < hold.n_pinned ? 1 : 0);
  const uint32_t n_windows = n.n_windows + (block >= hold.first_window ? 1 : 0);
  return pin_bytes(owners_[n.owner], n_pins, n_windows) - pin_bytes(n);
}

// One session more or fewer on the node, which is block `block` of its path.
void PrefixIndex::recount(NodeId id, const PathHold& hold, size_t block, Count count) {
  PrefixNode& n = node(id);
  Owner& owner = owner_of(id);
  const bool is_in = n.heap_at != LeafHeap::kNowhere;
  const HoldRank window_before = window_rank_of(n);
  if (is_in) owner.heap_of(n).remove(trie_, id);
  stats_.pin_bytes -= pin_bytes(n);
  for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) count_bytes(n, g, Count::kFewer);
  if (count == Count::kFewer) {
    CHECK(n.n_sessions > 0);
    --n.n_sessions;
    n.n_pins -= block < hold.n_pinned ? 1 : 0;
    n.n_windows -= block >= hold.first_window ? 1 : 0;
  } else {
    ++n.n_sessions;
    n.n_pins += block < hold.n_pinned ? 1 : 0;
    n.n_windows += block >= hold.first_window ? 1 : 0;
  }
  stats_.pin_bytes += pin_bytes(n);
  for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) count_bytes(n, g, Count::kMore);
  const bool is_first = count == Count::kMore && n.n_sessions == 1;
  const bool is_last = count == Count::kFewer && n.n_sessions == 0;
  owner.n_held += static_cast<uint64_t>(is_first) - static_cast<uint64_t>(is_last);
  if (n.segment == LruSegment::kProtected) {
    owner.n_protected += static_cast<uint64_t>(is_last) - static_cast<uint64_t>(is_first);
  }
  if (is_in) owner.heap_of(n).push(trie_, id);
  relink_windows(id, window_before);
}

// The node's cached window blocks move to the lists of its rank: at the end of the more lasting one, to the front of the other. Its time of
// last use stays: it may be in a heap.
void PrefixIndex::relink_windows(NodeId id, HoldRank before) {
  PrefixNode& n = node(id);
  const HoldRank now = window_rank_of(n);
  if (now == before) return;
  Owner& owner = owner_of(id);
  for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) {
    if (!is_window(owner, g) || n.blocks[g].is_none() || pool_.state(n.blocks[g]) != BlockState::kCached) continue;
    auto& from = owner.window_lru[g][static_cast<size_t>(before)];
    const auto [prev, next] = std::exchange(n.window_lru[g], {});
    (prev == kNoNode ? from.prev : node(prev).window_lru[g].next) = next;
    (next == kNoNode ? from.next : node(next).window_lru[g].prev) = prev;
    auto& [oldest, newest] = owner.window_lru[g][static_cast<size_t>(now)];
    if (now > before) {
      n.window_lru[g] = {.prev = newest, .next = kNoNode};
      (newest == kNoNode ? oldest : node(newest).window_lru[g].next) = id;
      newest = id;
    } else {
      n.window_lru[g] = {.prev = kNoNode, .next = oldest};
      (oldest == kNoNode ? newest : node(oldest).window_lru[g].prev) = id;
      oldest = id;
    }
  }
}

// The bytes of the node's block of the group, if there is one and sessions hold it.
void PrefixIndex::count_bytes(const PrefixNode& n, uint32_t group, Count count) {
  if (n.n_sessions == 0 || n.blocks[group].is_none()) return;
  const Owner& owner = owners_[n.owner];
  const HoldRank held = is_window(owner, group) ? window_rank_of(n) : rank_of(n);
  if (held == HoldRank::kNone) return;
  const uint64_t bytes = pool_.block_bytes(owner.spec.groups[group].size_class);
  const uint64_t change = count == Count::kMore ? bytes : uint64_t{0} - bytes;
  stats_.held_bytes += change;
  if (held == HoldRank::kPinned) stats_.pinned_bytes += change;
}

// The node has the block no more.
BlockId PrefixIndex::take_block(NodeId id, uint32_t group) {
  PrefixNode& n = node(id);
  const HoldRank held = is_window(owner_of(id), group) ? window_rank_of(n) : rank_of(n);
  stats_.evicted_held += held == HoldRank::kNone ? 0 : 1;
  count_bytes(n, group, Count::kFewer);
  return std::exchange(n.blocks[group], kNoBlock);
}

// The highest of its blocks. O(slots), and only where sessions hold anything.
HoldRank PrefixIndex::rank_of_extent(uint32_t extent) {
  if (stats_.held_bytes == 0) return HoldRank::kNone;
  scratch_.clear();
  pool_.list_cached(extent, scratch_);
  HoldRank highest = HoldRank::kNone;
  for (const BlockId block : scratch_) {
    const auto [index, group, is_used] = classes_[pool_.class_of(block).value];
    const PrefixNode& n = node(NodeId(pool_.keeper(block)));
    highest = std::max(highest, is_window(owners_[index], group.value) ? window_rank_of(n) : rank_of(n));
  }
  return highest;
}

Status PrefixIndex::check_hold(NodeId id) const {
  const PrefixNode& n = trie_.node(id);
  if (n.n_pins > n.n_sessions || n.n_windows > n.n_sessions || n.birth == 0 || n.birth > last_birth_) {
    return fail(ErrorCode::kInternal, "node {}: {} sessions, {} pins, {} windows", id.value, n.n_sessions, n.n_pins,
                n.n_windows);
  }
  if (trie_.is_root(n.parent)) return {};
  const PrefixNode& above = trie_.node(n.parent);
  if (above.n_sessions < n.n_sessions || above.n_pins < n.n_pins || above.birth >= n.birth) {
    return fail(ErrorCode::kInternal, "node {}: more sessions than above it", id.value);
  }
  return {};
}

Status PrefixIndex::check_held_bytes() const {
  uint64_t held = 0, pinned = 0, pins = 0;
  trie_.for_each([&](NodeId id) {
    const PrefixNode& n = trie_.node(id);
    if (n.parent == kNoNode) return;
    const Owner& owner = owners_[n.owner];
    pins += pin_bytes(n);
    for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) {
      const HoldRank rank = is_window(owner, g) ? window_rank_of(n) : rank_of(n);
      if (n.blocks[g].is_none() || rank == HoldRank::kNone) continue;
      held += pool_.block_bytes(owner.spec.groups[g].size_class);
      pinned += rank == HoldRank::kPinned ? pool_.block_bytes(owner.spec.groups[g].size_class) : 0;
    }
  });
  if (held == stats_.held_bytes && pinned == stats_.pinned_bytes && pins == stats_.pin_bytes && pinned <= pins)
    return {};
  return fail(ErrorCode::kInternal, "{} bytes held, {} pinned of {}, counted {}, {} and {}", held, pinned, pins,
              stats_.held_bytes, stats_.pinned_bytes, stats_.pin_bytes);
}

}  // namespace pagoda::kv
