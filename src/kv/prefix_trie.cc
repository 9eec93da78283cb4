#include "kv/prefix_trie.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kFirstSlots = 64;
constexpr int kMostSiblings = 64;

}  // namespace

PrefixTrie::PrefixTrie(uint64_t seed, HashFn hash) : seed_(seed), hash_(hash), slots_(kFirstSlots) {}

Hash128 PrefixTrie::key_of(const Hash128& parent, BlockTokens tokens) const {
  struct {
    Hash128 parent;
    std::array<TokenId, kBlockTokens> tokens;
  } input{.parent = parent, .tokens = {}};
  static_assert(sizeof(input) == sizeof(Hash128) + kBlockTokens * sizeof(TokenId));  // no padding
  std::ranges::copy(tokens, input.tokens.begin());
  return hash_(std::as_bytes(std::span(&input, 1)), seed_);
}

NodeId PrefixTrie::find(const Hash128& key, NodeId parent, BlockTokens tokens) const {
  const size_t mask = slots_.size() - 1;
  for (size_t at = home(key); slots_[at].node != kNoNode; at = (at + 1) & mask) {
    if (slots_[at].tag != tag_of(key)) continue;
    const PrefixNode& found = node(slots_[at].node);
    if (found.parent == parent && std::memcmp(found.tokens.data(), tokens.data(), tokens.size_bytes()) == 0) {
      return slots_[at].node;
    }
  }
  return kNoNode;
}

NodeId PrefixTrie::insert(const Hash128& key, NodeId parent, BlockTokens tokens) {
  DCHECK(find(key, parent, tokens) == kNoNode);
  if (free_.empty()) {
    const auto first = static_cast<uint32_t>(slab_.size()) * kChunk;
    CHECK(first < kNoNode.value - kChunk);
    slab_.push_back(std::make_unique<PrefixNode[]>(kChunk));
    for (uint32_t i = kChunk; i-- > 0;) free_.push_back(NodeId(first + i));
  }
  if ((n_nodes_ + 1) * 3 > slots_.size() * 2) grow();
  const NodeId id = free_.back();
  free_.pop_back();
  ++n_nodes_;
  PrefixNode& added = node(id);
  added = PrefixNode{};
  added.key = key;
  added.parent = parent;
  std::ranges::copy(tokens, added.tokens.begin());
  place(key, id);
  if (parent == kNoNode) return id;
  PrefixNode& above = node(parent);
  added.siblings.next = above.first_child;
  if (above.first_child != kNoNode) node(above.first_child).siblings.prev = id;
  above.first_child = id;
  ++above.n_children;
  return id;
}

void PrefixTrie::erase(NodeId id) {
  PrefixNode& gone = node(id);
  CHECK(gone.n_children == 0);
  const size_t mask = slots_.size() - 1;
  size_t at = home(gone.key);
  while (slots_[at].node != id) {
    CHECK(slots_[at].node != kNoNode);
    at = (at + 1) & mask;
  }
  remove_slot(at);
  if (gone.parent != kNoNode) {
    PrefixNode& above = node(gone.parent);
    const auto [prev, next] = gone.siblings;
    (prev == kNoNode ? above.first_child : node(prev).siblings.next) = next;
    if (next != kNoNode) node(next).siblings.prev = prev;
    --above.n_children;
  }
  free_.push_back(id);
  --n_nodes_;
}

PrefixTrie::PartialHit PrefixTrie::find_partial(NodeId parent, std::span<const TokenId> tokens) const {
  PartialHit best;
  if (tokens.empty()) return best;
  int n_seen = 0;
  for (NodeId id = node(parent).first_child; id != kNoNode && n_seen < kMostSiblings; ++n_seen) {
    const PrefixNode& child = node(id);
    const auto end = std::mismatch(tokens.begin(), tokens.end(), child.tokens.begin(), child.tokens.end()).first;
    const auto n_common = static_cast<int32_t>(end - tokens.begin());
    if (n_common > best.n_common) best = {id, n_common};
    id = child.siblings.next;
  }
  return best;
}

void PrefixTrie::place(const Hash128& key, NodeId id) {
  const size_t mask = slots_.size() - 1;
  size_t at = home(key);
  while (slots_[at].node != kNoNode) at = (at + 1) & mask;
  slots_[at] = {tag_of(key), id};
}

// Closes the gap: whoever stands behind it and may move up, does.
void PrefixTrie::remove_slot(size_t at) {
  const size_t mask = slots_.size() - 1;
  for (size_t next = (at + 1) & mask; slots_[next].node != kNoNode; next = (next + 1) & mask) {
    const size_t wanted = home(node(slots_[next].node).key);
    if (((next - wanted) & mask) < ((next - at) & mask)) continue;
    slots_[at] = slots_[next];
    at = next;
  }
  slots_[at] = {};
}

void PrefixTrie::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  std::swap(old, slots_);
  for (const Slot& slot : old) {
    if (slot.node != kNoNode) place(node(slot.node).key, slot.node);
  }
}

size_t PrefixTrie::memory_bytes() const {
  return slab_.size() * kChunk * sizeof(PrefixNode) + slots_.capacity() * sizeof(Slot) +
         free_.capacity() * sizeof(NodeId);
}

Status PrefixTrie::check_children(NodeId id) const {
  uint32_t n_children = 0;
  NodeId prev = kNoNode;
  for (NodeId child = node(id).first_child; child != kNoNode; child = node(child).siblings.next) {
    if (node(child).parent != id || node(child).siblings.prev != prev || ++n_children > n_nodes_) {
      return fail(ErrorCode::kInternal, "node {}: child {} is linked wrongly", id.value, child.value);
    }
    prev = child;
  }
  if (n_children != node(id).n_children) {
    return fail(ErrorCode::kInternal, "node {}: {} children of {}", id.value, n_children, node(id).n_children);
  }
  return {};
}

Status PrefixTrie::check_integrity() const {
  size_t n_found = 0, n_children = 0, n_roots = 0;
  Status status;
  for_each([&](NodeId id) {
    const PrefixNode& found = node(id);
    ++n_found;
    n_children += found.n_children;
    n_roots += is_root(id) ? 1 : 0;
    if (!status) return;
    if (find(found.key, found.parent, BlockTokens(found.tokens)) != id ||
        key_of(found.parent, BlockTokens(found.tokens)) != found.key) {
      status = fail(ErrorCode::kInternal, "node {} is not found", id.value);
    } else {
      status = check_children(id);
    }
  });
  TRY(status);
  if (n_found != n_nodes_ || n_children + n_roots != n_nodes_) {
    return fail(ErrorCode::kInternal, "{} nodes of {}, {} of them children", n_found, n_nodes_, n_children);
  }
  return {};
}

}  // namespace pagoda::kv
