// PrefixIndex: which cached blocks hold which tokens, and which of them go when room is needed. One for all models of a pool.
//
//   trie (prefix_trie.h)    a node: 32 committed tokens at a place, and one sealed block of every attention group that still has one
//   holders                 a lease counts as holder of the last node of its path, and holds the blocks it reads in the pool
//   eviction                a node without holders and children is a leaf: it and its blocks may go. Segmented LRU: a node's second hit
//                           takes it from probation to protected (at most 4/5 of a model's nodes), and probation goes first.
//                           A window group's blocks go one by one, least recently used first, and leave their node behind.
//                           Another model's or group's memory is given back by the extent: the one idle for longest, weighed by
//                           what its bytes cost to recompute.
//   sessions                a path that a session holds (sessions.h) goes after all others of its size class, a pinned one last; but it goes
//
// Units: blocks and bytes, as named; time is BlockPool::now().   Owns: the nodes; the pool owns the blocks.
// Invariants: (1) a kept block has exactly one node, its keeper.  (2) full groups: a node has all its blocks, and a block without
//   holder has no holder anywhere below.  (3) evictable <=> in a heap.  (4) cached window block <=> in its group's list.
//   (5) who holds a node for a session holds all above it.
// Threads: engine thread only.   Errors: none; misuse is a bug -> CHECK.   Cost: as noted; eviction O(log leaves) a block.
// Source: Kwon et al. 2023 (PagedAttention) sec. 4.4, Zheng et al. 2024 (RadixAttention), Karedla et al. 1994 (segmented LRU).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kv/block_pool.h"
#include "kv/in_flight.h"
#include "kv/leaf_heap.h"
#include "kv/prefix_trie.h"

namespace pagoda::kv {

// One cached model, as the index sees it.
struct PrefixOwner {
  struct Group {
    ClassId size_class;
    int32_t window_tokens = 0;  // 0: full attention
  };
  std::vector<Group> groups;  // by GroupId; at most kMaxGroups
  double cost_per_byte = 1;   // of recomputing a cached byte, relative to the other models
};

struct PrefixStats {
  uint64_t nodes = 0;               // roots included
  uint64_t memory_bytes = 0;        // of the index itself, outside the pool's budget
  uint64_t evicted_for_room = 0;    // blocks, ever; likewise below
  uint64_t evicted_for_others = 0;  // with a whole extent that another group or model needed
  uint64_t evicted_local = 0;       // window blocks beyond their groups' share
  uint64_t passed_local = 0;        // window blocks that no replay point wants
  uint64_t evicted_held = 0;        // of all of these, blocks that a session held
  uint64_t held_bytes = 0;          // now, of blocks that sessions hold, in use or not
  uint64_t pinned_bytes = 0;        // of those, pinned
  uint64_t pin_bytes = 0;  // what these may come to: pinned windows count whether their blocks are there or not
};

// What goes first is of the lowest rank.
enum class HoldRank : uint8_t { kNone, kHeld, kPinned };

// A session's hold on the path of n_blocks nodes.
struct PathHold {
  size_t n_blocks = 0;
  size_t n_pinned = 0;      // blocks [0, n_pinned) are pinned
  size_t first_window = 0;  // blocks [first_window, n_blocks) are held in window groups as well
  uint64_t stamp = 0;       // set by hold_path(): nodes born later are none of its own
};

class PrefixIndex {
 public:
  // The pool must outlive the index. `seed`: secret and random; tests may pass a weak hash.
  PrefixIndex(BlockPool& pool, uint64_t seed, PrefixTrie::HashFn hash = xxh3_128);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Requires a class not in use by another owner. Returns what open_root() wants.
  uint16_t add_owner(PrefixOwner owner);

  // The root of (fingerprint, namespace), made if need be, with one more holder.
  NodeId open_root(uint16_t owner, const Hash128& fingerprint, const CacheNamespace& cache_namespace);
  // The same without making it: kNoNode if nothing is cached there.
  NodeId find_root(uint16_t owner, const Hash128& fingerprint, const CacheNamespace& cache_namespace) const;
  void pin(NodeId id);
  // One holder fewer. A root without holders and children is gone.
  void unpin(NodeId id);

  const PrefixTrie& trie() const { return trie_; }
  BlockId block(NodeId id, GroupId group) const { return trie_.node(id).blocks[group.value]; }
  InFlight& in_flight() { return in_flight_; }
  const InFlight& in_flight() const { return in_flight_; }
  // Whether a node with this key was evicted lately. A hint: it forgets, and may take one key for another.
  bool was_evicted(const Hash128& key) const { return evicted_[evicted_at(key)] == key.high; }

  // A new child with its sealed blocks, [n_groups], each held by the caller, who stays its holder. kNoBlock where it has none of a window.
  NodeId add(const Hash128& key, NodeId parent, BlockTokens tokens, std::span<const BlockId> blocks);
  // Gives a node a block of a group where it has none; as in add().
  void attach(NodeId id, GroupId group, BlockId block);
  // Somebody found the node and uses it.
  void hit(NodeId id);
  // One holder more or fewer of the node's block. Requires that it has one.
  void hold(NodeId id, GroupId group);
  void drop(NodeId id, GroupId group);

  // Window groups: the node's block belongs to a replay point, and stays when its holders leave it behind.
  void mark_replay(NodeId id, GroupId group);
  bool is_replay(NodeId id, GroupId group) const { return (trie_.node(id).replay_groups >> group.value & 1) != 0; }
  // A holder went past it: the block goes, unless it belongs to a replay point or has holders.
  void pass(NodeId id, GroupId group);

  // The tier that the node's blocks came from, until somebody takes note of it.
  void set_origin(NodeId id, size_t tier) { node(id).origin = static_cast<uint8_t>(tier + 1); }
  std::optional<size_t> take_origin(NodeId id) {
    const size_t origin = std::exchange(node(id).origin, uint8_t{0});
    return origin == 0 ? std::nullopt : std::optional(origin - 1);
  }

  // A session holds the path, whose nodes exist, from the root's child on. It keeps nothing from being evicted: what is gone is no part of
  // the hold any more. O(path).
  void hold_path(std::span<const NodeId> path, PathHold& hold);
  // Requires the tokens and the root (kNoNode: gone) that it was taken with.
  void drop_path(NodeId root, std::span<const TokenId> token_ids, const PathHold& hold);
  // The nodes of these tokens' whole blocks, as far as they are there. Appended.
  void find_path(NodeId root, std::span<const TokenId> token_ids, std::vector<NodeId>& path) const;
  HoldRank rank(NodeId id) const;
  size_t node_bytes(NodeId id) const;  // of all its blocks
  // By how much PrefixStats::pin_bytes grows where a hold has the node as its block `block`.
  uint64_t pin_growth(NodeId id, const PathHold& hold, size_t block) const;

  // Evicts until `needs` can be allocated. False, with nothing evicted, if that is not enough. Pinned nodes and held blocks stay.
  bool make_room(std::span<const BlockNeed> needs);
  // Evicts everything that may go. O(nodes).
  void clear();

  PrefixStats stats() const;
  // Against the pool; `owner`'s leases are checked by its cache. O(nodes).
  Status check_integrity() const;

 private:
  static constexpr size_t kRanks = 3;
  static HoldRank rank_of(const PrefixNode& n) {
    return n.n_pins > 0 ? HoldRank::kPinned : n.n_sessions > 0 ? HoldRank::kHeld : HoldRank::kNone;
  }
  static HoldRank window_rank_of(const PrefixNode& n) { return n.n_windows > 0 ? rank_of(n) : HoldRank::kNone; }
  static size_t heap_index(const PrefixNode& n) {
    return n.n_sessions == 0 ? static_cast<size_t>(n.segment) : 1 + static_cast<size_t>(rank_of(n));
  }
  struct Owner {
    PrefixOwner spec;
    std::array<LeafHeap, kRanks + 1> leaves;  // those that no session holds by LruSegment, then the others by rank
    std::array<std::array<PrefixNode::Links, kRanks>, kMaxGroups> window_lru;  // {oldest, newest}
    uint64_t n_nodes = 0;                                                      // without roots
    uint64_t n_protected = 0;                                                  // that no session holds
    uint64_t n_held = 0;                                                       // by sessions

    LeafHeap& heap(LruSegment segment) { return leaves[static_cast<size_t>(segment)]; }
    const LeafHeap& heap(LruSegment segment) const { return leaves[static_cast<size_t>(segment)]; }
    LeafHeap& heap_of(const PrefixNode& n) { return leaves[heap_index(n)]; }
  };
  struct ClassUse {
    uint16_t owner = 0;
    GroupId group;
    bool is_used = false;
  };
  struct Candidate {
    HoldRank rank = HoldRank::kNone;  // the lowest goes first,
    double worth = 0;                 // then the smallest: recency by cost
    NodeId node = kNoNode;
    GroupId group;
    bool is_found = false;
  };

  PrefixNode& node(NodeId id) { return trie_.node(id); }
  Owner& owner_of(NodeId id) { return owners_[node(id).owner]; }
  bool is_window(const Owner& owner, uint32_t group) const { return owner.spec.groups[group].window_tokens > 0; }
  bool is_evictable(NodeId id) const;
  void refresh(NodeId id);
  void link_window(NodeId id, uint32_t group);
  void unlink_window(NodeId id, uint32_t group);
  void limit_window(Owner& owner, uint32_t group);
  NodeId oldest_window(const Owner& owner, uint32_t group) const;

  // prefix_hold.cc
  enum class Count : uint8_t { kMore, kFewer };
  void recount(NodeId id, const PathHold& hold, size_t block, Count count);
  void relink_windows(NodeId id, HoldRank before);
  void count_bytes(const PrefixNode& n, uint32_t group, Count count);
  uint64_t pin_bytes(const Owner& owner, uint32_t n_pins, uint32_t n_windows) const;
  uint64_t pin_bytes(const PrefixNode& n) const { return pin_bytes(owners_[n.owner], n.n_pins, n.n_windows); }
  BlockId take_block(NodeId id, uint32_t group);
  HoldRank rank_of_extent(uint32_t extent);
  Status check_hold(NodeId id) const;
  Status check_held_bytes() const;
  size_t evicted_at(const Hash128& key) const { return key.low % evicted_.size(); }

  // prefix_evict.cc
  double worth(uint64_t last_use, const Owner& owner) const;
  Candidate own_candidate(ClassId size_class);
  bool evict_one(std::span<const BlockNeed> needs);
  void evict_extent(uint32_t extent);
  void evict_leaf(NodeId id);
  void evict_subtree(NodeId id);
  void evict_window_block(NodeId id, uint32_t group);
  void erase(NodeId id);
  void prune(NodeId id);
  NodeId oldest_leaf(Owner& owner);

  Status check_node(NodeId id) const;
  Status check_owner(const Owner& owner, uint16_t index) const;

  BlockPool& pool_;
  PrefixTrie trie_;
  InFlight in_flight_;
  std::vector<Owner> owners_;
  std::vector<ClassUse> classes_;  // by ClassId
  uint64_t last_birth_ = 0;
  std::vector<uint64_t> evicted_;  // by key.low: key.high of the node evicted last
  std::vector<BlockId> scratch_;
  PrefixStats stats_;
};

}  // namespace pagoda::kv
