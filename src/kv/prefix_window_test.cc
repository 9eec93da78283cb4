// Prefix hits of models whose local layers keep their window only.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/test_prefix_world.h"

namespace pagoda::kv {
namespace {

const std::vector<std::vector<GroupSpec>> kGemma{{{.block_bytes = 256}, {.block_bytes = 256, .window_tokens = 80}}};

TEST(PrefixWindowTest, TheNextTurnFindsTheEndOfTheLast) {
  for (const int n : {90, 200, 230, 255, 256, 257, 281, 300}) {
    PrefixWorld w(64, kGemma);
    std::vector<TokenId> tokens = salted_tokens(n);
    KvLease lease(ModelId(0), {});
    w.compute(lease, std::span(tokens).first(40));
    for (int i = 40; i < n; ++i) {  // generates the rest
      w.must_admit(lease, std::span(tokens).first(static_cast<size_t>(i + 1)), 1);
      w.commit(lease);
    }
    w.release(lease);
    tokens = branch_of(tokens, tokens.size(), tokens.size() + 50, 1);
    const Granted granted = w.pass(tokens);
    EXPECT_EQ(granted.reused_tokens, n / 32 * 32) << n;
    ASSERT_SOUND(w.index.check_integrity());
  }
}

TEST(PrefixWindowTest, ADivergenceFallsBackToAReplayPoint) {
  PrefixWorld w(256, kGemma);
  const std::vector<TokenId> tokens = salted_tokens(3000);
  KvLease lease(ModelId(0), {});
  for (int done = 0; done < 2600; done += 100) {
    w.must_admit(lease, std::span(tokens).first(2600), std::min(100, 2600 - done));
    w.commit(lease);
  }
  for (int i = 2600; i < 3000; ++i) {
    w.must_admit(lease, std::span(tokens).first(static_cast<size_t>(i + 1)), 1);
    w.commit(lease);
  }
  w.check(lease);
  w.release(lease);
  const Granted behind_prompt = w.pass(branch_of(tokens, 2700, 2800, 1));
  EXPECT_EQ(behind_prompt.reused_tokens, 2592);  // the prompt's last boundary
  EXPECT_EQ(behind_prompt.miss, MissReason::kWindow);
  EXPECT_EQ(w.pass(branch_of(tokens, 2500, 2510, 2)).reused_tokens, 2048);
  EXPECT_EQ(w.pass(branch_of(tokens, 1030, 1100, 3)).reused_tokens, 1024);
  EXPECT_EQ(w.pass(branch_of(tokens, 900, 1000, 4)).reused_tokens, 0);
  EXPECT_EQ(w.pass(branch_of(tokens, 900, 1000, 5)).reused_tokens, 900);  // a branch is one, too
  ASSERT_SOUND(w.index.check_integrity());
}

TEST(PrefixWindowTest, LocalBlocksBetweenReplayPointsGo) {
  PrefixWorld w(256, kGemma);
  w.pass(salted_tokens(2048));
  EXPECT_EQ(w.pool.cached_blocks(ClassId(0)), 64u);
  EXPECT_EQ(w.pool.cached_blocks(ClassId(1)),
            2u * 4);  // 3 that a token at 1,024 and 2,048 would see, and one more each
}

TEST(PrefixWindowTest, LocalBlocksHaveABudget) {
  PrefixWorld w(16, kGemma);  // a quarter of it: 16 blocks
  for (int i = 0; i < 9; ++i) w.pass(salted_tokens(96, i));
  EXPECT_LE(w.pool.cached_blocks(ClassId(1)), 16u);
  EXPECT_GT(w.index.stats().evicted_local, 0u);
  EXPECT_EQ(w.pass(branch_of(salted_tokens(96, 8), 96, 120, 1)).reused_tokens, 96);
  ASSERT_SOUND(w.index.check_integrity());
}

TEST(PrefixWindowTest, AModelOfWindowsOnly) {
  PrefixWorld w(8, {{{.block_bytes = 256, .window_tokens = 50}}});
  for (int i = 0; i < 30; ++i) {
    const std::vector<TokenId> tokens = salted_tokens(100 + i % 7 * 10, i % 5);
    w.pass(tokens);
    EXPECT_GE(w.pass(tokens).reused_tokens, 64);
    ASSERT_SOUND(w.index.check_integrity());
  }
}

}  // namespace
}  // namespace pagoda::kv
