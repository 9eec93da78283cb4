// PrefixTrie: which token runs are known, as a hash-chained trie of blocks. A node is 32 tokens at a place: the child of one parent.
//
//   root (model, namespace) -> 32 tokens -> 32 tokens -> ...       key = keyed hash of (parent's key, the 32 tokens)
//                                        -> 32 tokens              siblings: newest first
//
// The key only finds candidates: a hit compares the parent and all 32 token ids, so no hash, however weak, yields a wrong block.
// A root is a node without parent whose "tokens" are its name: model instance, 128 bits of fingerprint, 128 of namespace, zeros.
// Owns: the nodes, in a slab; ids are reused.   Threads: engine thread only.   Errors: none; misuse is a bug -> CHECK.
// Cost: find, insert, erase O(1): one hash of 144 bytes, one probe, one compare. Memory: 256 B a node and 8 B a map slot.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/token_id.h"
#include "kv/ids.h"

namespace pagoda::kv {

inline constexpr size_t kMaxGroups = 4;  // attention groups of one model

using BlockTokens = std::span<const TokenId, kBlockTokens>;

enum class LruSegment : uint8_t { kProbation, kProtected };  // of a segmented LRU

// The index's part is kept here so that a node is one place in memory; prefix_index.h says what it means.
struct alignas(64) PrefixNode {
  struct Links {
    NodeId prev = kNoNode, next = kNoNode;
  };
  std::array<TokenId, kBlockTokens> tokens{};
  Hash128 key;
  NodeId parent = kNoNode;
  NodeId first_child = kNoNode;
  Links siblings;
  uint32_t n_children = 0;

  // ---- of PrefixIndex
  std::array<BlockId, kMaxGroups> blocks{kNoBlock, kNoBlock, kNoBlock, kNoBlock};
  uint32_t n_holders = 0;
  uint32_t heap_at = ~uint32_t{0};
  uint32_t n_sessions = 0;  // that hold it
  uint64_t last_use = 0;
  std::array<Links, kMaxGroups> window_lru{};
  uint16_t owner = 0;
  uint8_t n_hits = 0;
  uint8_t replay_groups = 0;  // bit g: group g's block belongs to a replay point
  LruSegment segment = LruSegment::kProbation;
  uint8_t origin = 0;      // the tier its blocks came from, plus 1; 0: computed, or used since
  uint64_t birth = 0;      // one number for each node ever added
  uint32_t n_pins = 0;     // of the sessions, those that pin it
  uint32_t n_windows = 0;  // of the sessions, those that hold its blocks of window groups as well
};
static_assert(sizeof(PrefixNode) == 256);

class PrefixTrie {
 public:
  using HashFn = Hash128 (*)(std::span<const std::byte> bytes, uint64_t seed);

  // `seed` is secret: who cannot guess it cannot make keys collide on purpose. Tests pass weak hashes.
  explicit PrefixTrie(uint64_t seed, HashFn hash = xxh3_128);

  Hash128 key_of(NodeId parent, BlockTokens tokens) const {
    return key_of(parent == kNoNode ? Hash128{} : node(parent).key, tokens);
  }
  Hash128 key_of(const Hash128& parent, BlockTokens tokens) const;
  // kNoNode if there is none. `key` is key_of(parent, tokens).
  NodeId find(const Hash128& key, NodeId parent, BlockTokens tokens) const;
  NodeId find(NodeId parent, BlockTokens tokens) const { return find(key_of(parent, tokens), parent, tokens); }
  // Requires that there is none yet.
  NodeId insert(const Hash128& key, NodeId parent, BlockTokens tokens);
  // Requires a node without children.
  void erase(NodeId id);

  // The child that shares most of its first tokens with `tokens`, of the newest 64; n_common 0 and kNoNode where none shares any.
  struct PartialHit {
    NodeId child = kNoNode;
    int32_t n_common = 0;
  };
  PartialHit find_partial(NodeId parent, std::span<const TokenId> tokens) const;

  PrefixNode& node(NodeId id) { return slab_[id.value / kChunk][id.value % kChunk]; }
  const PrefixNode& node(NodeId id) const { return slab_[id.value / kChunk][id.value % kChunk]; }
  bool is_root(NodeId id) const { return node(id).parent == kNoNode; }
  size_t n_nodes() const { return n_nodes_; }  // roots included
  size_t memory_bytes() const;

  // Calls visit(NodeId) for every node, in no order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.node != kNoNode) visit(slot.node);
    }
  }
  Status check_integrity() const;

 private:
  static constexpr uint32_t kChunk = 64;  // nodes: growing moves none of them
  struct Slot {
    uint32_t tag = 0;  // of the key: most mismatches are seen without touching the node
    NodeId node = kNoNode;
  };

  size_t home(const Hash128& key) const { return static_cast<size_t>(key.low) & (slots_.size() - 1); }
  static uint32_t tag_of(const Hash128& key) { return static_cast<uint32_t>(key.high); }
  void place(const Hash128& key, NodeId id);
  void remove_slot(size_t at);
  void grow();
  Status check_children(NodeId id) const;

  uint64_t seed_;
  HashFn hash_;
  std::vector<std::unique_ptr<PrefixNode[]>> slab_;
  std::vector<NodeId> free_;
  std::vector<Slot> slots_;  // open addressing, linear probing, at most 2/3 full
  size_t n_nodes_ = 0;
};

}  // namespace pagoda::kv
