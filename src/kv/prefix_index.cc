#include "kv/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kFewestRemembered = 1 << 10,
                 kMostRemembered = 1 << 14;  // evictions: about one for each 64 KiB of the budget

size_t n_remembered(const BlockPool& pool) {
  return std::clamp<size_t>(pool.stats().budget_bytes >> 16, kFewestRemembered, kMostRemembered);
}
constexpr uint8_t kHitsToProtect = 2;
// A window group's cached blocks take at most this part of the budget; what is older goes.
constexpr uint64_t kWindowShare = 4;

using RootName = std::array<TokenId, kBlockTokens>;

RootName root_name(uint16_t owner, const Hash128& fingerprint, const CacheNamespace& cache_namespace) {
  RootName name{};
  const std::array<uint64_t, 5> words{owner, fingerprint.low, fingerprint.high, cache_namespace.bits[0],
                                      cache_namespace.bits[1]};
  for (size_t i = 0; i < words.size(); ++i) {
    name[2 * i] = TokenId(static_cast<int32_t>(words[i]));
    name[2 * i + 1] = TokenId(static_cast<int32_t>(words[i] >> 32));
  }
  return name;
}

}  // namespace

PrefixIndex::PrefixIndex(BlockPool& pool, uint64_t seed, PrefixTrie::HashFn hash)
    : pool_(pool), trie_(seed, hash), evicted_(n_remembered(pool)) {}

uint16_t PrefixIndex::add_owner(PrefixOwner owner) {
  CHECK(!owner.groups.empty() && owner.groups.size() <= kMaxGroups && owner.cost_per_byte > 0);
  const auto index = static_cast<uint16_t>(owners_.size());
  for (uint32_t g = 0; g < owner.groups.size(); ++g) {
    const uint32_t c = owner.groups[g].size_class.value;
    if (c >= classes_.size()) classes_.resize(c + 1);
    CHECK(!classes_[c].is_used);
    classes_[c] = {.owner = index, .group = GroupId(g), .is_used = true};
  }
  owners_.push_back({.spec = std::move(owner), .leaves = {}, .window_lru = {}});
  return index;
}

NodeId PrefixIndex::open_root(uint16_t owner, const Hash128& fingerprint, const CacheNamespace& cache_namespace) {
  NodeId root = find_root(owner, fingerprint, cache_namespace);
  if (root == kNoNode) {
    const RootName name = root_name(owner, fingerprint, cache_namespace);
    root = trie_.insert(trie_.key_of(kNoNode, name), kNoNode, name);
    node(root).owner = owner;
  }
  pin(root);
  return root;
}

NodeId PrefixIndex::find_root(uint16_t owner, const Hash128& fingerprint, const CacheNamespace& cache_namespace) const {
  const RootName name = root_name(owner, fingerprint, cache_namespace);
  return trie_.find(kNoNode, name);
}

bool PrefixIndex::is_evictable(NodeId id) const {
  const PrefixNode& n = trie_.node(id);
  return n.n_holders == 0 && n.n_children == 0 && n.parent != kNoNode;
}

// Puts the node into its heap or takes it out, as is right now.
void PrefixIndex::refresh(NodeId id) {
  const bool is_in = node(id).heap_at != LeafHeap::kNowhere;
  if (is_in == is_evictable(id)) return;
  LeafHeap& heap = owner_of(id).heap_of(node(id));
  is_in ? heap.remove(trie_, id) : heap.push(trie_, id);
}

void PrefixIndex::pin(NodeId id) {
  ++node(id).n_holders;
  refresh(id);
}

void PrefixIndex::unpin(NodeId id) {
  CHECK(node(id).n_holders > 0);
  --node(id).n_holders;
  node(id).last_use = pool_.now();
  refresh(id);
  prune(id);
}

NodeId PrefixIndex::add(const Hash128& key, NodeId parent, BlockTokens tokens, std::span<const BlockId> blocks) {
  const NodeId id = trie_.insert(key, parent, tokens);
  node(id).owner = node(parent).owner;
  node(id).last_use = pool_.now();
  node(id).birth = ++last_birth_;
  ++owner_of(id).n_nodes;
  refresh(parent);
  for (uint32_t g = 0; g < blocks.size(); ++g) {
    if (!blocks[g].is_none()) attach(id, GroupId(g), blocks[g]);
  }
  refresh(id);
  return id;
}

void PrefixIndex::attach(NodeId id, GroupId group, BlockId block) {
  CHECK(node(id).blocks[group.value].is_none());
  node(id).blocks[group.value] = block;
  count_bytes(node(id), group.value, Count::kMore);
  pool_.keep(block, id.value);
}

void PrefixIndex::hit(NodeId id) {
  PrefixNode& found = node(id);
  if (found.n_hits < kHitsToProtect) ++found.n_hits;
  if (found.n_hits < kHitsToProtect || found.segment == LruSegment::kProtected) return;
  const bool is_in = found.heap_at != LeafHeap::kNowhere;
  Owner& owner = owner_of(id);
  if (is_in) owner.heap_of(found).remove(trie_, id);
  found.segment = LruSegment::kProtected;
  owner.n_protected += found.n_sessions == 0 ? 1 : 0;
  if (is_in) owner.heap_of(found).push(trie_, id);
}

void PrefixIndex::hold(NodeId id, GroupId group) {
  const BlockId block = node(id).blocks[group.value];
  const bool was_cached = pool_.state(block) == BlockState::kCached;
  pool_.ref(block);
  if (was_cached && is_window(owner_of(id), group.value)) unlink_window(id, group.value);
}

void PrefixIndex::drop(NodeId id, GroupId group) {
  const BlockId block = node(id).blocks[group.value];
  pool_.unref(block);
  if (!is_window(owner_of(id), group.value) || pool_.state(block) != BlockState::kCached) return;
  link_window(id, group.value);
  limit_window(owner_of(id), group.value);
}

void PrefixIndex::link_window(NodeId id, uint32_t group) {
  auto& [oldest, newest] = owner_of(id).window_lru[group][static_cast<size_t>(window_rank_of(node(id)))];
  node(id).window_lru[group] = {.prev = newest, .next = kNoNode};
  node(id).last_use = pool_.now();
  (newest == kNoNode ? oldest : node(newest).window_lru[group].next) = id;
  newest = id;
}

void PrefixIndex::unlink_window(NodeId id, uint32_t group) {
  auto& [oldest, newest] = owner_of(id).window_lru[group][static_cast<size_t>(window_rank_of(node(id)))];
  const auto [prev, next] = std::exchange(node(id).window_lru[group], {});
  (prev == kNoNode ? oldest : node(prev).window_lru[group].next) = next;
  (next == kNoNode ? newest : node(next).window_lru[group].prev) = prev;
}

NodeId PrefixIndex::oldest_window(const Owner& owner, uint32_t group) const {
  for (const PrefixNode::Links& list : owner.window_lru[group]) {
    if (list.prev != kNoNode) return list.prev;
  }
  return kNoNode;
}

void PrefixIndex::limit_window(Owner& owner, uint32_t group) {
  const ClassId size_class = owner.spec.groups[group].size_class;
  const uint64_t most = pool_.stats().budget_bytes / kWindowShare;
  while (pool_.cached_blocks(size_class) * uint64_t{pool_.block_bytes(size_class)} > most) {
    evict_window_block(oldest_window(owner, group), group);
    ++stats_.evicted_local;
  }
}

void PrefixIndex::mark_replay(NodeId id, GroupId group) {
  if (!node(id).blocks[group.value].is_none()) node(id).replay_groups |= static_cast<uint8_t>(1u << group.value);
}

void PrefixIndex::pass(NodeId id, GroupId group) {
  const BlockId block = node(id).blocks[group.value];
  const bool stays = (node(id).replay_groups >> group.value & 1) != 0;
  if (stays || block.is_none() || pool_.state(block) != BlockState::kCached) return;
  evict_window_block(id, group.value);
  ++stats_.passed_local;
}

PrefixStats PrefixIndex::stats() const {
  PrefixStats stats = stats_;
  stats.nodes = trie_.n_nodes();
  stats.memory_bytes = trie_.memory_bytes() + evicted_.capacity() * sizeof(uint64_t);
  return stats;
}

Status PrefixIndex::check_node(NodeId id) const {
  const PrefixNode& n = trie_.node(id);
  if ((n.heap_at != LeafHeap::kNowhere) != is_evictable(id)) {
    return fail(ErrorCode::kInternal, "node {}: {} holders, {} children, in its heap or not", id.value, n.n_holders,
                n.n_children);
  }
  if (n.parent == kNoNode) {
    if (n.n_holders + n.n_children == 0) return fail(ErrorCode::kInternal, "root {} is nobody's", id.value);
    return {};
  }
  const Owner& owner = owners_[n.owner];
  TRY(check_hold(id));
  if (trie_.node(n.parent).owner != n.owner) return fail(ErrorCode::kInternal, "node {}: owner", id.value);
  for (uint32_t g = 0; g < kMaxGroups; ++g) {
    const BlockId block = n.blocks[g];
    const bool is_group = g < owner.spec.groups.size();
    if (block.is_none()) {
      if (is_group && !is_window(owner, g)) return fail(ErrorCode::kInternal, "node {}: no block {}", id.value, g);
      continue;
    }
    const BlockState state = pool_.state(block);
    if (!is_group || pool_.keeper(block) != id.value || pool_.class_of(block) != owner.spec.groups[g].size_class ||
        (state != BlockState::kCached && (state != BlockState::kSealed || is_evictable(id)))) {
      return fail(ErrorCode::kInternal, "node {}: block {} of group {} in its state", id.value, block.value, g);
    }
    if (!is_window(owner, g) && state == BlockState::kCached && n.n_holders > 0) {
      return fail(ErrorCode::kInternal, "node {}: held, but not its block", id.value);
    }
    // Whoever holds a block of a full group holds all above it.
    const NodeId above = n.parent;
    if (!is_window(owner, g) && state == BlockState::kSealed && !trie_.is_root(above) &&
        pool_.state(trie_.node(above).blocks[g]) != BlockState::kSealed) {
      return fail(ErrorCode::kInternal, "node {}: held below a cached one", id.value);
    }
  }
  return {};
}

Status PrefixIndex::check_owner(const Owner& owner, uint16_t index) const {
  std::array<uint64_t, kMaxGroups> n_cached{};
  uint64_t n_nodes = 0, n_protected = 0, n_leaves = 0, n_held = 0;
  trie_.for_each([&](NodeId id) {
    const PrefixNode& n = trie_.node(id);
    if (n.owner != index || n.parent == kNoNode) return;
    ++n_nodes;
    n_protected += n.segment == LruSegment::kProtected && n.n_sessions == 0 ? 1 : 0;
    n_held += n.n_sessions > 0 ? 1 : 0;
    n_leaves += n.heap_at != LeafHeap::kNowhere ? 1 : 0;
    for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) {
      if (!n.blocks[g].is_none() && pool_.state(n.blocks[g]) == BlockState::kCached) ++n_cached[g];
    }
  });
  size_t n_in_heaps = 0;
  bool is_sound = true;
  for (const LeafHeap& heap : owner.leaves) {
    n_in_heaps += heap.size();
    is_sound = is_sound && heap.is_sound(trie_);
  }
  if (n_nodes != owner.n_nodes || n_protected != owner.n_protected || n_held != owner.n_held ||
      n_leaves != n_in_heaps || !is_sound) {
    return fail(ErrorCode::kInternal, "owner {}: {} nodes, {} protected, {} leaves", index, n_nodes, n_protected,
                n_leaves);
  }
  for (uint32_t g = 0; g < owner.spec.groups.size(); ++g) {
    uint64_t n_listed = 0;
    for (const PrefixNode::Links& list : owner.window_lru[g]) {
      for (NodeId id = list.prev; id != kNoNode; id = trie_.node(id).window_lru[g].next) ++n_listed;
    }
    if (n_cached[g] != pool_.cached_blocks(owner.spec.groups[g].size_class) ||
        n_listed != (is_window(owner, g) ? n_cached[g] : 0)) {
      return fail(ErrorCode::kInternal, "owner {}, group {}: {} cached blocks, {} listed", index, g, n_cached[g],
                  n_listed);
    }
  }
  return {};
}

Status PrefixIndex::check_integrity() const {
  TRY(trie_.check_integrity());
  Status status;
  trie_.for_each([&](NodeId id) {
    if (status) status = check_node(id);
  });
  TRY(status);
  for (uint16_t i = 0; i < owners_.size(); ++i) TRY(check_owner(owners_[i], i));
  return check_held_bytes();
}

}  // namespace pagoda::kv
