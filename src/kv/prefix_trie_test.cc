#include "kv/prefix_trie.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "kv/test_prefix_world.h"

namespace pagoda::kv {
namespace {

Hash128 constant_hash(std::span<const std::byte>, uint64_t) { return {5, 5}; }
Hash128 three_bits(std::span<const std::byte> bytes, uint64_t seed) { return {xxh3_64(bytes, seed) & 7, 0}; }

std::array<TokenId, kBlockTokens> block_of(int seed) {
  std::array<TokenId, kBlockTokens> tokens;
  for (int i = 0; i < kBlockTokens; ++i) tokens[static_cast<size_t>(i)] = TokenId(seed / (i + 1) % 3);
  return tokens;
}

TEST(PrefixTrieTest, FindsTheChildWithTheLongestCommonBeginning) {
  PrefixTrie trie(1);
  const auto insert = [&](NodeId parent, const std::vector<TokenId>& tokens) {
    const BlockTokens block = std::span(tokens).first<kBlockTokens>();
    return trie.insert(trie.key_of(parent, block), parent, block);
  };
  const std::vector<TokenId> base = salted_tokens(32);
  const NodeId root = insert(kNoNode, salted_tokens(32, 9));
  const NodeId a = insert(root, base), b = insert(root, branch_of(base, 20, 32, 1));
  const std::vector<TokenId> wanted = branch_of(base, 25, 31, 2);
  EXPECT_EQ(trie.find_partial(root, wanted).child, a);
  EXPECT_EQ(trie.find_partial(root, wanted).n_common, 25);
  EXPECT_EQ(trie.find_partial(root, std::span(wanted).first(7)).n_common, 7);
  EXPECT_EQ(trie.find_partial(root, branch_of(base, 20, 31, 1)).child, b);
  EXPECT_EQ(trie.find_partial(root, salted_tokens(31, 4)).child, kNoNode);
  EXPECT_EQ(trie.find_partial(a, wanted).child, kNoNode);
  ASSERT_SOUND(trie.check_integrity());
}

// Against a map of maps, with a good hash and with hopeless ones: equal keys are never taken for equal tokens.
TEST(PrefixTrieTest, RandomOperations) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const PrefixTrie::HashFn hash :
       {PrefixTrie::HashFn(xxh3_128), PrefixTrie::HashFn(three_bits), PrefixTrie::HashFn(constant_hash)}) {
    std::mt19937 random(seed);
    PrefixTrie trie(seed, hash);
    struct Known {
      NodeId parent;
      int tokens;
    };
    std::map<std::pair<uint32_t, int>, NodeId> children;  // (parent, tokens)
    std::map<uint32_t, Known> nodes;
    const int n_most = hash == PrefixTrie::HashFn(xxh3_128) ? 3000 : 150;
    for (int step = 0; step < 20000; ++step) {
      const int tokens = 1 + static_cast<int>(random() % 40) * 1000003;
      const auto at = nodes.empty() ? nodes.end() : nodes.lower_bound(random() % 4096);
      const NodeId parent = at == nodes.end() || random() % 20 == 0 ? kNoNode : NodeId(at->first);
      const auto block = block_of(tokens);
      const Hash128 key = trie.key_of(parent, block);
      const auto known = children.find({parent.value, tokens});
      const NodeId found = trie.find(key, parent, block);
      // Seeds may mean the same tokens; compare by what is stored.
      if (known != children.end()) {
        ASSERT_EQ(found, known->second);
      }
      if (found == kNoNode && nodes.size() < static_cast<size_t>(n_most)) {
        const NodeId added = trie.insert(key, parent, block);
        children[{parent.value, tokens}] = added;
        nodes[added.value] = {parent, tokens};
      } else if (at != nodes.end() && trie.node(NodeId(at->first)).n_children == 0) {
        trie.erase(NodeId(at->first));
        std::erase_if(children, [&](const auto& child) { return child.second.value == at->first; });
        nodes.erase(at);
      }
      ASSERT_EQ(trie.n_nodes(), nodes.size());
      if (step % 500 == 0) ASSERT_SOUND(trie.check_integrity());
    }
  }
}

TEST(PrefixTrieTest, CollidingKeysNeverYieldAnotherBlock) {
  for (const PrefixTrie::HashFn hash : {PrefixTrie::HashFn(three_bits), PrefixTrie::HashFn(constant_hash)}) {
    PrefixWorld w(64, kOneGroup, hash);
    for (int i = 0; i < 40; ++i) {
      const std::vector<TokenId> tokens = branch_of(salted_tokens(200), static_cast<size_t>(i * 4), 200, i);
      EXPECT_EQ(w.pass(tokens, CacheNamespace{{static_cast<uint64_t>(i % 2), 0}}).reused_tokens > 0, i > 2);
    }
    ASSERT_SOUND(w.index.check_integrity());
  }
}

}  // namespace
}  // namespace pagoda::kv
