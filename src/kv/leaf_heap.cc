#include "kv/leaf_heap.h"

#include "base/check.h"

namespace pagoda::kv {

void LeafHeap::put(PrefixTrie& trie, size_t at, NodeId id) {
  nodes_[at] = id;
  trie.node(id).heap_at = static_cast<uint32_t>(at);
}

void LeafHeap::push(PrefixTrie& trie, NodeId id) {
  CHECK(trie.node(id).heap_at == kNowhere);
  nodes_.push_back(id);
  sift_up(trie, nodes_.size() - 1, id);
}

void LeafHeap::remove(PrefixTrie& trie, NodeId id) {
  const size_t at = trie.node(id).heap_at;
  CHECK(at < nodes_.size() && nodes_[at] == id);
  trie.node(id).heap_at = kNowhere;
  const NodeId last = nodes_.back();
  nodes_.pop_back();
  if (last == id) return;
  sift_up(trie, at, last);
  sift_down(trie, trie.node(last).heap_at, last);
}

void LeafHeap::sift_up(PrefixTrie& trie, size_t at, NodeId id) {
  const uint64_t age = trie.node(id).last_use;
  for (; at > 0 && age < trie.node(nodes_[(at - 1) / 2]).last_use; at = (at - 1) / 2) {
    put(trie, at, nodes_[(at - 1) / 2]);
  }
  put(trie, at, id);
}

void LeafHeap::sift_down(PrefixTrie& trie, size_t at, NodeId id) {
  const auto use_of = [&](size_t i) { return trie.node(nodes_[i]).last_use; };
  for (size_t child = 2 * at + 1; child < nodes_.size(); child = 2 * at + 1) {
    if (child + 1 < nodes_.size() && use_of(child + 1) < use_of(child)) ++child;
    if (trie.node(id).last_use <= use_of(child)) break;
    put(trie, at, nodes_[child]);
    at = child;
  }
  put(trie, at, id);
}

bool LeafHeap::is_sound(const PrefixTrie& trie) const {
  for (size_t at = 0; at < nodes_.size(); ++at) {
    if (trie.node(nodes_[at]).heap_at != at) return false;
    if (at > 0 && trie.node(nodes_[at]).last_use < trie.node(nodes_[(at - 1) / 2]).last_use) return false;
  }
  return true;
}

}  // namespace pagoda::kv
