// What an admission says of its hits and misses, and what the reuse distances make of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>

#include "kv/test_prefix_world.h"

namespace pagoda::kv {
namespace {

constexpr CacheNamespace kMine{{1, 2}}, kTheirs{{3, 4}};

TEST(PrefixExplainTest, SaysWhereTheTokensPart) {
  for (const int n_common : {0, 1, 31, 32, 33, 63, 64, 75, 95}) {
    SCOPED_TRACE(n_common);
    PrefixWorld w(16, kOneGroup);
    const std::vector<TokenId> first = salted_tokens(128);
    w.pass(first);
    const Granted granted = w.pass(branch_of(first, static_cast<size_t>(n_common), 120, 1));
    EXPECT_EQ(granted.reused_tokens, n_common);
    EXPECT_EQ(granted.miss, MissReason::kCold);
    EXPECT_EQ(granted.divergence.position, n_common);
    EXPECT_EQ(granted.divergence.token, first[static_cast<size_t>(n_common)]);
  }
}

TEST(PrefixExplainTest, WhereNothingStandsThereIsNoTokenToTell) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(200);
  const Granted cold = w.pass(std::span(tokens).first(128));
  EXPECT_EQ(cold.divergence.position, 0);
  EXPECT_FALSE(cold.divergence.token);
  const Granted longer = w.pass(tokens);
  EXPECT_EQ(longer.miss, MissReason::kCold);
  EXPECT_EQ(longer.divergence.position, 128);
  EXPECT_FALSE(longer.divergence.token);
  EXPECT_EQ(w.pass(std::span(tokens).first(192)).divergence.position, -1);  // nowhere
}

// Another namespace's tokens are neither told nor hinted at, whoever asks.
TEST(PrefixExplainTest, NamespacesLearnNothingOfEachOther) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  w.pass(tokens, kTheirs);
  w.pass(branch_of(tokens, 70, 100, 2), kTheirs);
  for (const CacheNamespace& asking : {kMine, CacheNamespace{}}) {
    PrefixWorld alone(16, kOneGroup);
    const Granted granted = w.pass(tokens, asking), untouched = alone.pass(tokens, asking);
    EXPECT_EQ(granted.reused_tokens, 0);
    EXPECT_EQ(granted.miss, untouched.miss);
    EXPECT_EQ(granted.divergence.position, untouched.divergence.position);
    EXPECT_EQ(granted.divergence.token, untouched.divergence.token);
  }
}

TEST(PrefixExplainTest, TheOpenNamespaceMayBeKnown) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  const auto pass = [&](const CacheNamespace& own, const CacheNamespace& open) {
    KvLease lease(ModelId(0), own);
    lease.open_namespace = open;
    const Granted granted = w.compute(lease, tokens);
    w.release(lease);
    w.index.clear();
    return granted;
  };
  w.pass(tokens);
  const Granted granted = pass(kMine, {});
  EXPECT_EQ(granted.miss, MissReason::kNamespace);
  EXPECT_FALSE(granted.divergence.token);
  w.pass(tokens, kTheirs);
  EXPECT_NE(pass(kMine, {}).miss, MissReason::kNamespace);
  w.pass(tokens, kTheirs);
  EXPECT_NE(pass(kMine, kMine).miss, MissReason::kNamespace);
}

TEST(PrefixExplainTest, WithoutAnIndexItIsOff) {
  BlockPool pool({.budget_bytes = 4096, .extent_bytes = 1024});
  Cache cache(pool, ModelId(0), std::vector<GroupSpec>{{.block_bytes = 256}});
  std::vector<BlockOp> ops;
  KvLease lease(ModelId(0), {});
  const Admission answer = cache.admit(lease, salted_tokens(40), 40, ops);
  EXPECT_EQ(std::get<Granted>(answer).miss, MissReason::kOff);
  cache.release(lease);
}

TEST(PrefixExplainTest, WhoIsNotWaitedForIsLate) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(200);
  KvLease first(ModelId(0), {}), second(ModelId(0), {});
  w.must_admit(first, tokens, 32);
  second.patience = Patience::kNever;
  EXPECT_EQ(w.must_admit(second, tokens, 32).miss, MissReason::kLate);
  w.release(first);
  w.release(second);
}

TEST(PrefixExplainTest, TokensThatAreThereWithoutTheirWindow) {
  PrefixWorld w(64, {{{.block_bytes = 256}, {.block_bytes = 256, .window_tokens = 40}}});
  const std::vector<TokenId> tokens = salted_tokens(600);
  w.pass(tokens);
  // Its block's local half went when the window passed.
  const Granted granted = w.pass(branch_of(tokens, 300, 310, 1));
  EXPECT_EQ(granted.miss, MissReason::kWindow);
  EXPECT_LT(granted.reused_tokens, 300);
  EXPECT_EQ(granted.divergence.position, -1);
}

// The definition, spelled out: a request's whole blocks are looked up, then used from the deepest up; and used again when it ends.
class NaiveCurve {
 public:
  explicit NaiveCurve(double most_blocks) : most_blocks_(most_blocks) {}
  void look_up(std::span<const TokenId> tokens) {
    const size_t n = (tokens.size() - 1) / kBlockTokens;
    for (size_t b = 0; b < n; ++b) n_hits += std::ranges::find(stack_, path(tokens, b)) != stack_.end() ? 1 : 0;
    use(tokens, n);
  }
  void end(std::span<const TokenId> tokens) { use(tokens, tokens.size() / kBlockTokens); }
  uint64_t n_hits = 0;

 private:
  static std::vector<TokenId> path(std::span<const TokenId> tokens, size_t block) {
    const std::span<const TokenId> run = tokens.first((block + 1) * kBlockTokens);
    return {run.begin(), run.end()};
  }
  void use(std::span<const TokenId> tokens, size_t n_blocks) {
    for (size_t b = n_blocks; b-- > 0;) {
      std::erase(stack_, path(tokens, b));
      stack_.push_front(path(tokens, b));
      while (static_cast<double>(stack_.size()) > most_blocks_) stack_.pop_back();
    }
  }
  double most_blocks_;
  std::list<std::vector<TokenId>> stack_;
};

TEST(PrefixExplainTest, ReuseDistancesOfACacheEqualNaiveCaches) {
  constexpr size_t kBlocks = 64;
  std::minstd_rand random(3);
  BlockPool pool({.budget_bytes = kBlocks * 256, .extent_bytes = 1024});
  PrefixIndex index(pool, 17);
  const FakeClock clock;
  ReuseDistance reuse(kBlocks * 256, 256);
  // The window group's blocks are not what is counted.
  Cache cache(pool, ModelId(0), std::vector<GroupSpec>{{.block_bytes = 256}, {.block_bytes = 512, .window_tokens = 32}},
              PrefixConfig{.index = &index, .clock = &clock, .reuse = &reuse});
  std::vector<NaiveCurve> naive;
  for (const double budget : ReuseCurve::kBudgets) naive.emplace_back(budget * kBlocks);
  std::vector<BlockOp> ops;
  for (int i = 0; i < 1500; ++i) {
    const std::vector<TokenId> base = salted_tokens(320, static_cast<int>(std::min(random() % 40, random() % 40)));
    const size_t n_common = random() % 320;
    const std::vector<TokenId> tokens =
        branch_of(base, n_common, n_common + 1 + random() % 100, static_cast<int>(random() % 3));
    KvLease lease(ModelId(0), {});
    ASSERT_TRUE(std::holds_alternative<Granted>(cache.admit(lease, tokens, static_cast<int32_t>(tokens.size()), ops)));
    cache.commit(lease, lease.n_written() - lease.n_committed());
    cache.release(lease);
    ops.clear();
    for (NaiveCurve& one : naive) {
      one.look_up(tokens);
      one.end(tokens);
    }
  }
  ASSERT_SOUND(reuse.check_integrity());
  for (size_t i = 0; i < naive.size(); ++i)
    EXPECT_EQ(reuse.curve().hit_blocks[i], static_cast<double>(naive[i].n_hits));
  EXPECT_GT(naive[2].n_hits, naive[1].n_hits);
}

TEST(PrefixExplainTest, ARequestIsLookedUpOnce) {
  PrefixWorld w(16, kOneGroup);
  ReuseDistance reuse(16 * 1024, 256);
  Cache cache(w.pool, ModelId(9), std::vector<GroupSpec>{{.block_bytes = 256}},
              PrefixConfig{.index = &w.index, .clock = &w.clock, .reuse = &reuse});
  const std::vector<TokenId> tokens = salted_tokens(161);
  KvLease lease(ModelId(9), {}), waiting(ModelId(9), {});
  ASSERT_TRUE(std::holds_alternative<Granted>(cache.admit(lease, tokens, 40, w.ops)));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(std::holds_alternative<WaitOn>(cache.admit(waiting, tokens, 40, w.ops)));
  cache.commit(lease, 40);
  cache.release(lease);  // preempted
  ASSERT_TRUE(std::holds_alternative<Granted>(cache.admit(lease, tokens, 130, w.ops)));
  EXPECT_EQ(reuse.curve().looked_up_blocks, 10u);
  EXPECT_EQ(reuse.curve().hit_blocks[1], 5);
  cache.release(lease);
  cache.release(waiting);
}

}  // namespace
}  // namespace pagoda::kv
