// LeafHeap: the evictable nodes of one segment, least recently used first. An intrusive binary heap over PrefixNode::last_use.
// A heap and not a list, because a node becomes evictable when its last child goes, with an age of its own.
// Owns: nothing; a node is in one heap at most (PrefixNode::heap_at).     Cost: push, remove O(log n); top O(1).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/prefix_trie.h"

namespace pagoda::kv {

class LeafHeap {
 public:
  static constexpr uint32_t kNowhere = ~uint32_t{0};

  bool empty() const { return nodes_.empty(); }
  size_t size() const { return nodes_.size(); }
  // Requires that the heap is not empty.
  NodeId top() const { return nodes_.front(); }

  // Requires that the node is in no heap.
  void push(PrefixTrie& trie, NodeId id);
  // Requires that the node is in this heap.
  void remove(PrefixTrie& trie, NodeId id);

  bool is_sound(const PrefixTrie& trie) const;

 private:
  void put(PrefixTrie& trie, size_t at, NodeId id);
  void sift_up(PrefixTrie& trie, size_t at, NodeId id);
  void sift_down(PrefixTrie& trie, size_t at, NodeId id);

  std::vector<NodeId> nodes_;
};

}  // namespace pagoda::kv
