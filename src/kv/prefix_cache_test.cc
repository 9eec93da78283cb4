// What an admission reuses, waits for and evicts; rule by rule.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/test_prefix_world.h"

namespace pagoda::kv {
namespace {

constexpr GroupId kGlobal{0};

bool is_no_space(const Admission& answer) { return std::holds_alternative<NoSpace>(answer); }

void check_all(PrefixWorld& w, std::vector<const KvLease*> leases, uint32_t model = 0) {
  ASSERT_SOUND(w.caches[model]->check_integrity(leases));
}

TEST(PrefixCacheTest, ReusesWholeBlocks) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> first = salted_tokens(100), second = branch_of(first, 64, 100, 1);
  EXPECT_EQ(w.pass(first).reused_tokens, 0);
  EXPECT_EQ(w.cached_blocks(), 3u);
  EXPECT_EQ(w.live_blocks(), 0u);
  KvLease lease(ModelId(0), {});
  const Granted granted = w.must_admit(lease, second, 10);
  EXPECT_EQ(granted.reused_tokens, 64);
  EXPECT_EQ(granted.copied_tokens, 0);
  EXPECT_EQ(granted.miss, MissReason::kCold);
  EXPECT_EQ(lease.n_committed(), 64);
  EXPECT_EQ(lease.n_written(), 74);
  EXPECT_EQ(w.live_blocks(), 3u);
  EXPECT_EQ(w.cached_blocks(), 1u);
  w.commit(lease);
  w.check(lease);
  check_all(w, {&lease});
  w.release(lease);
}

TEST(PrefixCacheTest, CopiesAPartialBlockAndLeavesTheOriginal) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> first = salted_tokens(100), second = branch_of(first, 75, 120, 1);
  KvLease donor(ModelId(0), {}), lease(ModelId(0), {});
  w.compute(donor, first);
  const Granted granted = w.must_admit(lease, second, 45);
  EXPECT_EQ(granted.reused_tokens, 75);
  EXPECT_EQ(granted.copied_tokens, 11);
  ASSERT_EQ(w.ops.size(), 2u);
  EXPECT_EQ(w.ops[0], (BlockOp{BlockOpKind::kCopy, kGlobal, lease.blocks(kGlobal)[2], donor.blocks(kGlobal)[2], 11}));
  EXPECT_EQ(w.ops[1].kind, BlockOpKind::kZero);
  w.commit(lease);
  w.check(lease);
  w.check(donor);
  check_all(w, {&lease, &donor});
  w.release(donor);
  w.release(lease);
}

TEST(PrefixCacheTest, AlwaysLeavesATokenToCompute) {
  PrefixWorld w(16, kOneGroup);
  for (const int n : {1, 2, 31, 32, 33, 64, 65, 100}) {
    PrefixWorld fresh(16, kOneGroup);
    fresh.pass(salted_tokens(128));
    const Granted granted = fresh.pass(salted_tokens(n));
    EXPECT_EQ(granted.reused_tokens, n - 1) << n;
    EXPECT_EQ(granted.miss, MissReason::kNone);
  }
}

TEST(PrefixCacheTest, NamespacesDoNotShare) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  w.pass(tokens, CacheNamespace{{1, 2}});
  EXPECT_EQ(w.pass(tokens, CacheNamespace{{1, 3}}).reused_tokens, 0);
  EXPECT_EQ(w.pass(tokens).reused_tokens, 0);
  EXPECT_EQ(w.pass(tokens, CacheNamespace{{1, 2}}).reused_tokens, 96);
}

TEST(PrefixCacheTest, ModelsAndFingerprintsDoNotShare) {
  BlockPool pool({.budget_bytes = 16 * 1024, .extent_bytes = 1024});
  PrefixIndex index(pool, 5);
  const FakeClock clock;
  const std::vector<GroupSpec> groups{{.block_bytes = 256}};
  std::vector<std::unique_ptr<Cache>> caches;
  for (uint32_t m = 0; m < 3; ++m) {
    const PrefixConfig config{.index = &index, .clock = &clock, .fingerprint = {m % 2, 9}};
    caches.push_back(std::make_unique<Cache>(pool, ModelId(m), groups, config));
  }
  std::vector<BlockOp> ops;
  const std::vector<TokenId> tokens = salted_tokens(100);
  for (uint32_t m = 0; m < 3; ++m) {
    KvLease lease(ModelId(m), {});
    const Admission answer = caches[m]->admit(lease, tokens, 100, ops);
    ASSERT_TRUE(std::holds_alternative<Granted>(answer));
    EXPECT_EQ(std::get<Granted>(answer).reused_tokens, 0);
    caches[m]->commit(lease, 100);
    caches[m]->release(lease);
  }
  EXPECT_EQ(pool.stats().cached_blocks, 9u);
}

TEST(PrefixCacheTest, WhoOptsOutComputesAllAndServesOthers) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  w.pass(tokens);
  KvLease lease(ModelId(0), {});
  lease.reuse = PrefixReuse::kNone;
  const Granted granted = w.compute(lease, tokens);
  EXPECT_EQ(granted.reused_tokens, 0);
  EXPECT_EQ(granted.miss, MissReason::kOptedOut);
  EXPECT_EQ(w.live_blocks(), 4u);  // it took the cached ones when its own were full
  EXPECT_EQ(w.cached_blocks(), 0u);
  w.check(lease);
  check_all(w, {&lease});
  w.release(lease);
  EXPECT_EQ(w.cached_blocks(), 3u);
}

TEST(PrefixCacheTest, RequestsInFlightShare) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(140), other = branch_of(tokens, 128, 140, 3);
  KvLease a(ModelId(0), {}), b(ModelId(0), {});
  b.patience = Patience::kNever;
  w.must_admit(a, tokens, 70);
  w.must_admit(b, other, 70);  // both compute the same
  EXPECT_EQ(w.live_blocks(), 6u);
  w.commit(a);
  w.commit(b);
  EXPECT_EQ(w.live_blocks(), 4u);  // one copy of what is full
  EXPECT_EQ(a.blocks(kGlobal)[1], b.blocks(kGlobal)[1]);
  w.compute(a, tokens);
  w.compute(b, other);
  EXPECT_EQ(a.blocks(kGlobal)[3], b.blocks(kGlobal)[3]);
  EXPECT_NE(a.blocks(kGlobal)[4], b.blocks(kGlobal)[4]);
  w.check(a);
  w.check(b);
  check_all(w, {&a, &b});
  w.release(a);
  w.check(b);
  w.release(b);
}

TEST(PrefixCacheTest, WaitsForTheBlockThatAnotherComputes) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  KvLease a(ModelId(0), {}), b(ModelId(0), {});
  std::vector<TicketId> done;
  w.must_admit(a, tokens, 40);
  const Admission first = w.admit(b, tokens, 40);
  ASSERT_TRUE(std::holds_alternative<WaitOn>(first));
  EXPECT_FALSE(b.holds_blocks());
  EXPECT_GT(std::get<WaitOn>(first).deadline_us, w.clock.now_us());
  w.cache_of(a).take_completed(done);
  EXPECT_TRUE(done.empty());
  w.commit(a);
  w.cache_of(a).take_completed(done);
  EXPECT_EQ(done, std::vector{std::get<WaitOn>(first).ticket});
  w.must_admit(a, tokens, 60);
  const Admission second = w.admit(b, tokens, 40);  // has the first block now, and waits for the next
  ASSERT_TRUE(std::holds_alternative<WaitOn>(second));
  EXPECT_EQ(b.n_committed(), 32);
  EXPECT_NE(std::get<WaitOn>(second).ticket, std::get<WaitOn>(first).ticket);
  w.commit(a);
  const Granted granted = w.must_admit(b, tokens, 40);
  EXPECT_EQ(granted.reused_tokens, 64);
  EXPECT_EQ(b.n_written(), 100);
  w.commit(b);
  w.check(b);
  check_all(w, {&a, &b});
  w.release(a);
  w.release(b);
}

TEST(PrefixCacheTest, AFlightEndsWithItsLease) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  KvLease a(ModelId(0), {}), b(ModelId(0), {});
  w.must_admit(a, tokens, 5);
  const Admission answer = w.admit(b, tokens, 40);
  ASSERT_TRUE(std::holds_alternative<WaitOn>(answer));
  w.release(a);
  std::vector<TicketId> done;
  w.cache_of(a).take_completed(done);
  EXPECT_EQ(done, std::vector{std::get<WaitOn>(answer).ticket});
  EXPECT_EQ(w.must_admit(b, tokens, 40).reused_tokens, 0);
  w.release(b);
  EXPECT_EQ(w.index.trie().n_nodes(), 0u);
  EXPECT_EQ(w.index.in_flight().size(), 0u);
}

TEST(PrefixCacheTest, TheImpatientNeverWait) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  KvLease a(ModelId(0), {}), b(ModelId(0), {}), c(ModelId(0), {});
  w.must_admit(a, tokens, 40);
  b.patience = Patience::kNever;
  EXPECT_EQ(w.must_admit(b, tokens, 40).reused_tokens, 0);
  c.reuse = PrefixReuse::kNone;
  EXPECT_EQ(w.must_admit(c, tokens, 40).reused_tokens, 0);
  w.release(a);
  w.release(b);
  w.release(c);
}

// One that computes takes what others have registered meanwhile.
TEST(PrefixCacheTest, TakesHitsInTheMiddle) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(200);
  KvLease a(ModelId(0), {});
  w.must_admit(a, tokens, 32);
  w.commit(a);
  w.pass(std::span(tokens).first(150));
  const Granted granted = w.must_admit(a, tokens, 1);
  EXPECT_EQ(granted.reused_tokens, 128 - 32);
  EXPECT_EQ(a.n_written(), 129);
  w.commit(a);
  w.check(a);
  w.release(a);
}

TEST(PrefixCacheTest, EvictsTheLeastRecentlyUsedLeaf) {
  PrefixWorld w(4, kOneGroup);  // 16 blocks
  const std::vector<TokenId> a = salted_tokens(128, 1), b = salted_tokens(128, 2), c = salted_tokens(128, 3);
  w.pass(a);
  w.pass(b);
  w.pass(c);
  w.pass(a);
  EXPECT_EQ(w.cached_blocks(), 12u);
  w.pass(salted_tokens(5 * 32 + 1, 4));  // 6 blocks: 2 of b must go, from its end
  EXPECT_EQ(w.pass(a).reused_tokens, 127);
  const Granted granted = w.pass(std::span(b).first(100));
  EXPECT_EQ(granted.reused_tokens, 64);
  EXPECT_EQ(granted.miss, MissReason::kEvicted);
}

TEST(PrefixCacheTest, AScanDoesNotEvictWhatIsUsedAgainAndAgain) {
  PrefixWorld w(4, kOneGroup);
  const std::vector<TokenId> hot = salted_tokens(129, 1);
  for (int i = 0; i < 3; ++i) w.pass(hot);
  for (int i = 0; i < 15; ++i) w.pass(salted_tokens(100, 10 + i));  // three times what the cache holds
  EXPECT_EQ(w.pass(hot).reused_tokens, 128);
}

TEST(PrefixCacheTest, WhatWasHotOnceAgesAway) {
  PrefixWorld w(4, kOneGroup);
  std::vector<std::vector<TokenId>> old;
  for (int p = 0; p < 4; ++p) {
    old.push_back(salted_tokens(129, 100 + p));
    for (int i = 0; i < 3; ++i) w.pass(old.back());
  }
  for (int round = 0; round < 10; ++round) {
    for (int p = 0; p < 3; ++p) w.pass(salted_tokens(129, 200 + p));
  }
  int kept = 0;
  for (int p = 0; p < 3; ++p) kept += w.pass(salted_tokens(129, 200 + p)).reused_tokens;
  EXPECT_EQ(kept, 3 * 128);
}

TEST(PrefixCacheTest, NoSpaceOnlyWhenEverythingIsHeld) {
  PrefixWorld w(4, kOneGroup);  // 16 blocks
  const std::vector<TokenId> a = salted_tokens(10 * 32, 1), b = salted_tokens(6 * 32, 2);
  w.pass(b);
  KvLease lease(ModelId(0), {}), other(ModelId(0), {});
  w.compute(lease, a);
  EXPECT_EQ(w.cached_blocks(), 6u);
  EXPECT_TRUE(is_no_space(w.admit(other, salted_tokens(7 * 32, 3), 7 * 32)));
  EXPECT_EQ(w.cached_blocks(), 6u);  // nothing is evicted in vain
  EXPECT_FALSE(other.holds_blocks());
  EXPECT_TRUE(w.caches[0]->has_room(other, salted_tokens(6 * 32, 3), 32, 0));
  EXPECT_FALSE(w.caches[0]->has_room(other, salted_tokens(6 * 32 + 1, 3), 32, 0));
  EXPECT_EQ(w.must_admit(other, salted_tokens(6 * 32, 3), 6 * 32).reused_tokens, 0);
  EXPECT_EQ(w.cached_blocks(), 0u);
  check_all(w, {&lease, &other});
  w.release(lease);
  w.release(other);
}

TEST(PrefixCacheTest, WhatOthersHoldNeedsNoRoom) {
  PrefixWorld w(4, kOneGroup);  // 16 blocks
  const std::vector<TokenId> tokens = salted_tokens(12 * 32, 1), other = branch_of(tokens, 11 * 32, 15 * 32, 1);
  KvLease lease(ModelId(0), {}), next(ModelId(0), {});
  w.compute(lease, tokens);
  EXPECT_TRUE(w.caches[0]->has_room(next, other, 32, 0));
  EXPECT_FALSE(w.caches[0]->has_room(next, other, 32, 1));
  EXPECT_EQ(w.caches[0]->match_tokens({}, other), 11 * 32);
  EXPECT_EQ(w.compute(next, other).reused_tokens, 11 * 32);
  w.release(lease);
  w.release(next);
}

// The hits of the one who asks are the coldest there are, and stay.
TEST(PrefixCacheTest, HitsArePinnedBeforeRoomIsMade) {
  PrefixWorld w(2, kOneGroup);  // 8 blocks
  const std::vector<TokenId> a = salted_tokens(129, 1), b = salted_tokens(97, 2);
  w.pass(a);
  w.pass(b);
  KvLease lease(ModelId(0), {});
  const std::vector<TokenId> longer = branch_of(a, 128, 200, 1);
  EXPECT_EQ(w.compute(lease, longer).reused_tokens, 128);
  w.check(lease);
  w.release(lease);
  // A donor that would have to make room for its own copy is given up instead.
  KvLease tight(ModelId(0), {});
  const std::vector<TokenId> whole = branch_of(longer, 40, 8 * 32, 2);
  EXPECT_EQ(w.compute(tight, whole).reused_tokens, 32);
  w.check(tight);
  check_all(w, {&tight});
  w.release(tight);
}

TEST(PrefixCacheTest, AnotherModelsIdleExtentsAreTaken) {
  PrefixWorld w(4, {{{.block_bytes = 256}}, {{.block_bytes = 512}}});
  w.pass(salted_tokens(12 * 32, 1));  // three extents of model 0
  KvLease held(ModelId(0), {});
  w.compute(held, salted_tokens(2 * 32, 2));
  EXPECT_EQ(w.pool.stats().free_extents, 0u);
  KvLease other(ModelId(1), {});
  w.compute(other, salted_tokens(6 * 32, 3));
  EXPECT_EQ(w.live_blocks(), 2u + 6u);
  EXPECT_GT(w.index.stats().evicted_for_others, 0u);
  check_all(w, {&held});
  check_all(w, {&other}, 1);
  KvLease more(ModelId(1), {});
  EXPECT_TRUE(is_no_space(w.admit(more, salted_tokens(32, 4), 32)));
  w.release(held);
  w.release(other);
}

TEST(PrefixCacheTest, OldMemoryOfAnotherModelGoesBeforeOnesOwn) {
  PrefixWorld w(8, {{{.block_bytes = 256}}, {{.block_bytes = 256}}});
  w.pass(salted_tokens(16 * 32, 1), {}, 0);
  for (int i = 0; i < 8; ++i) w.pass(salted_tokens(4 * 32, 10 + i), {}, 1);
  EXPECT_GT(w.pool.cached_blocks(ClassId(1)), 20u);
}

TEST(PrefixCacheTest, ClearLeavesAnEmptyPool) {
  PrefixWorld w(16, {{{.block_bytes = 256}, {.block_bytes = 256, .window_tokens = 64}},
                     {{.block_bytes = 512, .window_tokens = 40}}});
  for (int i = 0; i < 5; ++i) {
    w.pass(salted_tokens(100 + i, i), {}, 0);
    w.pass(salted_tokens(100 + i, i), {}, 1);
  }
  w.index.clear();
  EXPECT_EQ(w.cached_blocks(), 0u);
  EXPECT_EQ(w.pool.stats().free_extents, 16u);
  EXPECT_EQ(w.index.trie().n_nodes(), 0u);
}

}  // namespace
}  // namespace pagoda::kv
