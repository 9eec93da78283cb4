// Tiering and Cache over a tier that does what the test says.
#include "kv/tiering.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kv/test_tiered_world.h"

namespace pagoda::kv {
namespace {

using Objects = FakeTier::Objects;
using Index = FakeTier::Index;

TierKey key_of(const TieredWorld& w, std::span<const TokenId> tokens, size_t block) {
  TierKey key = w.tiering->root_key(ModelId(0), {});
  for (size_t b = 0; b <= block; ++b) key = tier_key(key, tokens.subspan(b * kBlockTokens).first<kBlockTokens>());
  return key;
}

// What a world that served the tokens leaves in its tier.
Objects stored(std::span<const TokenId> tokens) {
  Objects objects;
  {
    TieredWorld w(64, objects);
    w.serve(tokens);
  }
  return objects;
}

TEST(TieringTest, WholeBlocksAreStoredAndHoldNothing) {
  Objects objects;
  TieredWorld w(64, objects);
  const std::vector<TokenId> tokens = salted_tokens(200);
  w.pass(tokens);
  EXPECT_EQ(w.live_blocks(), 0u);
  EXPECT_TRUE(w.tiering->is_storing());
  EXPECT_EQ(w.stats().staged_bytes, 6 * 256u);
  w.index.clear();  // the originals are gone before the tier gets to them
  std::ranges::fill(w.arena, std::byte{0xEE});
  w.poll();
  EXPECT_FALSE(w.tiering->is_storing());
  EXPECT_EQ(objects.size(), 6u);
  EXPECT_EQ(w.stats().stored_blocks, 6u);
  EXPECT_EQ(w.stats().staged_bytes, 0u);
  EXPECT_EQ(w.serve(tokens).reused_tokens, 192);
  EXPECT_EQ(w.stats().stored_blocks, 6u);  // there already
}

TEST(TieringTest, RestoredAfterARestart) {
  Objects objects;
  const std::vector<TokenId> tokens = salted_tokens(200);
  for (int start = 0; start < 3; ++start) {
    TieredWorld w(64, objects);
    EXPECT_EQ(w.serve(tokens).reused_tokens, start == 0 ? 0 : 192);
    EXPECT_EQ(w.n_waits, start == 0 ? 0 : 1);
    EXPECT_EQ(w.restored, start == 0 ? 0 : 192);
    EXPECT_EQ(w.serve(branch_of(tokens, 100, 150, 1)).reused_tokens, start == 0 ? 100 : 128);
    EXPECT_EQ(w.restored, start == 0 ? 0 : 32);
    EXPECT_EQ(w.stats().loads, start == 0 ? 0u : 2u);
    EXPECT_EQ(w.stats().restored_tokens[0], start == 0 ? 0u : 224u);
  }
}

TEST(TieringTest, NothingForeignIsFound) {
  const std::vector<TokenId> tokens = salted_tokens(200);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  EXPECT_EQ(w.serve(tokens, {{1, 2}}).reused_tokens, 0);  // another namespace
  w.index.clear();
  w.tiering->set_identity(ModelId(0), Sha256{std::byte{77}});  // another model
  EXPECT_EQ(w.serve(tokens).reused_tokens, 0);
  EXPECT_EQ(w.tier->n_gets, 0);
}

TEST(TieringTest, WithoutAnIdentityTheTiersAreNotUsed) {
  Objects objects;
  TieredWorld w(64, objects);
  w.tiering->add_model({.model = ModelId(9), .owner = 0, .fingerprint = {}, .groups = {{ClassId(0), 0}}});
  EXPECT_FALSE(w.tiering->is_ready(ModelId(9)));
  w.tiering->store(ModelId(9), {{}, GroupId(0)}, kNoBlock);
  EXPECT_FALSE(w.tiering->is_storing());
}

TEST(TieringTest, WhatRamGaveUpComesBack) {
  Objects objects;
  TieredWorld w(8, objects);  // 32 blocks
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 8; ++i) {
      const Granted granted = w.serve(salted_tokens(300, i));
      EXPECT_EQ(granted.reused_tokens, round == 0 ? 0 : 288) << i;
    }
  }
  EXPECT_GT(w.stats().loads, 10u);
  EXPECT_EQ(w.stats().loads_cut, 0u);
}

TEST(TieringTest, ATierWithoutAnIndexIsAskedOnce) {
  Objects objects;
  const std::vector<TokenId> tokens = salted_tokens(400);
  {
    TieredWorld w(64, objects, kOneGroup, Index::kAskedFor);
    KvLease lease(ModelId(0), {});
    for (int32_t n = 64; n <= 320; n += 64) {  // in chunks
      Admission answer = w.admit(lease, tokens, 64);
      if (std::holds_alternative<WaitOn>(answer)) {
        EXPECT_EQ(n, 64);
        w.poll();
        answer = w.admit(lease, tokens, 64);
      }
      ASSERT_TRUE(std::holds_alternative<Granted>(answer));
      w.commit(lease);
      w.sound({&lease});
    }
    w.release(lease);
    w.poll();
    EXPECT_EQ(w.tier->n_asks, 1);
    EXPECT_EQ(objects.size(), 10u);
  }
  TieredWorld w(64, objects, kOneGroup, Index::kAskedFor);
  EXPECT_EQ(w.serve(tokens).reused_tokens, 320);
  EXPECT_EQ(w.n_waits, 2);  // for the blocks; then again, for nothing more
}

TEST(TieringTest, AFailedBlockEndsTheRun) {
  for (const TierOutcome outcome : {TierOutcome::kCorrupt, TierOutcome::kFailed, TierOutcome::kAbsent}) {
    Objects objects;
    const std::vector<TokenId> tokens = salted_tokens(300);
    {
      TieredWorld w(64, objects);
      w.serve(tokens);
    }
    TieredWorld w(64, objects);
    w.tier->faults[key_of(w, tokens, 3).bytes] = outcome;
    const Granted granted = w.serve(tokens);
    EXPECT_EQ(granted.reused_tokens, 96);
    EXPECT_EQ(granted.miss, outcome == TierOutcome::kCorrupt ? MissReason::kChecksum : MissReason::kCold);
    EXPECT_EQ(w.n_waits, 1);
    EXPECT_EQ(w.stats().loads_cut, 1u);
    EXPECT_EQ(w.stats().loads_corrupt, outcome == TierOutcome::kCorrupt ? 1u : 0u);
    EXPECT_EQ(w.live_blocks(), 0u);
    w.tier->faults.clear();
    w.clock.advance_us(2'000'000);
    w.index.clear();
    EXPECT_EQ(w.serve(tokens).reused_tokens, 288);  // what was quarantined was stored again
  }
}

TEST(TieringTest, CompletionsInAnyOrder) {
  const std::vector<TokenId> tokens = salted_tokens(200);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  w.tier->answers = FakeTier::Answers::kWhenFinished;
  KvLease lease(ModelId(0), {}), other(ModelId(0), {});
  const Admission first = w.admit(lease, tokens, 200);
  const Admission second = w.admit(other, branch_of(tokens, 70, 200, 1), 130);
  ASSERT_TRUE(std::holds_alternative<WaitOn>(first) && std::holds_alternative<WaitOn>(second));
  EXPECT_EQ(std::get<WaitOn>(first).ticket, std::get<WaitOn>(second).ticket);
  ASSERT_EQ(w.tier->n_waiting(), 6u);
  EXPECT_TRUE(w.caches[0]->is_loading());
  for (const size_t at : {5, 0, 2, 1, 0}) {
    w.tier->finish_at(at);
    EXPECT_TRUE(w.poll().empty());
    w.sound({&lease, &other});
  }
  EXPECT_EQ(w.cached_blocks(), 4u);  // the fifth is the last to come
  w.tier->finish(1);
  EXPECT_EQ(w.poll(), std::vector{std::get<WaitOn>(first).ticket});
  EXPECT_FALSE(w.caches[0]->is_loading());
  EXPECT_EQ(w.serve(lease, tokens).reused_tokens, 192);
  w.release(lease);
  EXPECT_EQ(w.serve(other, branch_of(tokens, 70, 200, 1)).reused_tokens, 70);
  w.release(other);
  EXPECT_EQ(w.tier->n_gets, 6);
}

TEST(TieringTest, ALoadGoesOnWhenNobodyWaits) {
  const std::vector<TokenId> tokens = salted_tokens(200);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  w.tier->answers = FakeTier::Answers::kWhenFinished;
  KvLease lease(ModelId(0), {});
  ASSERT_TRUE(std::holds_alternative<WaitOn>(w.admit(lease, tokens, 200)));
  w.release(lease);
  w.tier->finish(100);
  w.poll();
  w.sound({});
  EXPECT_EQ(w.serve(tokens).reused_tokens, 192);
  EXPECT_EQ(w.n_waits, 0);
}

// Blocks behind what was evicted meanwhile are of no use.
TEST(TieringTest, TheirPathIsGone) {
  const std::vector<TokenId> tokens = salted_tokens(200);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  w.serve(std::span(tokens).first(97));
  w.tier->answers = FakeTier::Answers::kWhenFinished;
  KvLease lease(ModelId(0), {});
  ASSERT_TRUE(std::holds_alternative<WaitOn>(w.admit(lease, tokens, 200)));
  EXPECT_EQ(lease.n_committed(), 96);
  w.release(lease);
  w.index.clear();
  w.tier->finish(1);
  w.poll();
  w.sound({});
  w.tier->finish(100);
  w.poll();
  w.sound({});
  EXPECT_EQ(w.live_blocks() + w.cached_blocks(), 0u);
  w.tier->answers = FakeTier::Answers::kAtOnce;
  EXPECT_EQ(w.serve(tokens).reused_tokens, 192);
}

TEST(TieringTest, WhoWaitedTooLongUsesWhatHasCome) {
  const std::vector<TokenId> tokens = salted_tokens(200);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  w.tier->answers = FakeTier::Answers::kWhenFinished;
  w.tiering->set_compute_cost(ModelId(0), 1000);
  KvLease lease(ModelId(0), {});
  const Admission answer = w.admit(lease, tokens, 200);
  ASSERT_TRUE(std::holds_alternative<WaitOn>(answer));
  EXPECT_EQ(std::get<WaitOn>(answer).deadline_us, 192'000);  // what computing would take
  w.tier->finish(2);
  w.poll();
  lease.patience = Patience::kNever;
  const Granted granted = w.must_admit(lease, tokens, 136);
  EXPECT_EQ(granted.reused_tokens, 64);
  EXPECT_EQ(granted.miss, MissReason::kLoadSlow);
  w.tier->finish(2);  // comes while it computes the same
  w.poll();
  w.sound({&lease});
  w.commit(lease);
  w.check(lease);
  w.sound({&lease});
  w.tier->finish(100);
  w.poll();
  w.sound({&lease});
  EXPECT_GT(w.stats().unused_blocks, 0u);
  w.release(lease);
  w.sound({});
}

TEST(TieringTest, SlowerThanComputing) {
  const std::vector<TokenId> tokens = salted_tokens(200);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  w.tier->given_stats.read_bytes_per_s = 1e6;  // 1,536 bytes in 1,536 us
  w.tiering->set_compute_cost(ModelId(0), 7);  // 192 tokens in 1,344
  EXPECT_EQ(w.serve(tokens).miss, MissReason::kLoadSlow);
  EXPECT_EQ(w.n_waits, 0);
  EXPECT_EQ(w.stats().loads_slow, 1u);
  w.index.clear();
  w.tiering->set_compute_cost(ModelId(0), 9);
  EXPECT_EQ(w.serve(tokens).reused_tokens, 192);
  w.index.clear();
  w.tiering->set_compute_cost(ModelId(0), 7);
  EXPECT_EQ(w.serve(tokens).reused_tokens, 0);
  w.index.clear();
  w.clock.advance_us(11'000'000);  // it may have been busy then
  EXPECT_EQ(w.serve(tokens).reused_tokens, 192);
}

TEST(TieringTest, NoMoreThanRamHasRoomFor) {
  const std::vector<TokenId> tokens = salted_tokens(600);
  Objects objects = stored(tokens);
  TieredWorld w(6, objects);  // 24 blocks
  KvLease other(ModelId(0), {}), lease(ModelId(0), {});
  w.compute(other, salted_tokens(380, 5));  // 12
  const Admission answer = w.admit(lease, tokens, 32);
  ASSERT_TRUE(std::holds_alternative<WaitOn>(answer));
  EXPECT_EQ(w.tier->n_waiting(), 9u + 11u);  // 18 blocks are too many; and other's 11 being stored
  w.poll();
  w.sound({&other, &lease});
  for (const int32_t n_blocks : {9, 11, 12}) {  // half of what is wanted, until RAM is full
    EXPECT_EQ(std::holds_alternative<WaitOn>(w.admit(lease, tokens, 32)), n_blocks < 12);
    EXPECT_EQ(lease.n_committed(), n_blocks * 32);
    w.poll();
    w.sound({&other, &lease});
    w.check(lease);
  }
  EXPECT_TRUE(std::holds_alternative<NoSpace>(w.admit(lease, tokens, 32)));
  EXPECT_EQ(w.stats().loads_no_room, 2u);
  w.check(other);
  w.release(lease);
  w.release(other);
}

TEST(TieringTest, WindowsComeWhereTheyAreSeen) {
  Objects objects;
  const std::vector<TokenId> tokens = salted_tokens(1500);
  {
    TieredWorld w(400, objects, kWindowed);
    w.serve(tokens);
    EXPECT_EQ(objects.size(), 46u + 2 * 4);  // the windows at 1,024 and at the end, and a block more
    EXPECT_EQ(w.tier->n_replays, 2 * 4) << "tiers are told which ones these are";
  }
  TieredWorld w(400, objects, kWindowed);
  EXPECT_EQ(w.serve(branch_of(tokens, 1490, 1600, 1)).reused_tokens, 1472);
  EXPECT_EQ(w.tier->n_gets, 46 + 3);
  TieredWorld early(400, objects, kWindowed);
  EXPECT_EQ(early.serve(branch_of(tokens, 1300, 1400, 2)).reused_tokens, 1024);
  EXPECT_EQ(early.serve(tokens).reused_tokens, 1472);  // full blocks behind the windows of RAM
  TieredWorld branch(400, objects, kWindowed);
  EXPECT_EQ(branch.serve(branch_of(tokens, 900, 1000, 3)).reused_tokens, 0);
  EXPECT_EQ(branch.tier->n_gets, 0);  // full blocks without windows are no hit
}

// RAM has the path, but a tier has its windows.
TEST(TieringTest, OnlyTheWindowsAreMissing) {
  Objects objects;
  TieredWorld w(16, objects, kWindowed);  // 64 blocks, a quarter for cached windows
  const std::vector<TokenId> tokens = salted_tokens(400);
  w.serve(tokens);
  for (int i = 1; i < 4; ++i) w.serve(salted_tokens(100, i));
  ASSERT_LT(w.pool.cached_blocks(ClassId(1)), 17u);
  for (int i = 4; i < 8; ++i) w.serve(salted_tokens(97, i));
  const int n_gets = w.tier->n_gets;
  EXPECT_EQ(w.serve(tokens).reused_tokens, 384);
  EXPECT_EQ(w.tier->n_gets - n_gets, 3);
}

TEST(TieringTest, AWindowThatFails) {
  Objects objects;
  const std::vector<TokenId> tokens = salted_tokens(400);
  {
    TieredWorld w(64, objects, kWindowed);
    w.serve(tokens);
  }
  TieredWorld w(64, objects, kWindowed);
  // Both groups have this key; its full block is there already.
  w.serve(std::span(tokens).first(353));
  w.tier->faults[key_of(w, tokens, 11).bytes] = TierOutcome::kCorrupt;
  const Granted granted = w.serve(tokens);
  EXPECT_EQ(granted.reused_tokens, 352);
  EXPECT_EQ(granted.miss, MissReason::kChecksum);
}

TEST(TieringTest, AModelOfWindowsOnly) {
  const std::vector<std::vector<GroupSpec>> windows{{{.block_bytes = 256, .window_tokens = 50}}};
  Objects objects;
  const std::vector<TokenId> tokens = salted_tokens(300);
  {
    TieredWorld w(64, objects, windows);
    w.serve(tokens);
  }
  TieredWorld w(64, objects, windows);
  EXPECT_EQ(w.serve(tokens).reused_tokens, 288);
  EXPECT_EQ(w.tier->n_gets, 2);
  TieredWorld cut(64, objects, windows);
  cut.tier->faults[key_of(cut, tokens, 8).bytes] = TierOutcome::kFailed;
  EXPECT_EQ(cut.serve(tokens).reused_tokens, 0);
  cut.index.clear();
  EXPECT_EQ(cut.index.trie().n_nodes(), 0u);
}

TEST(TieringTest, WhatFindsNoRoomIsNotStored) {
  Objects objects;
  TieredWorld w(64, objects, kOneGroup, Index::kKept, {.staging_bytes = 1000});
  w.serve(salted_tokens(200));
  EXPECT_EQ(objects.size(), 3u);
  EXPECT_EQ(w.stats().unstored_blocks, 3u);
  w.tier->is_down = true;
  w.serve(salted_tokens(200, 1));
  EXPECT_EQ(w.stats().unstored_blocks, 9u);
  EXPECT_EQ(w.stats().staged_bytes, 0u);
  w.tier->is_down = false;
  w.serve(salted_tokens(90, 2));
  EXPECT_EQ(objects.size(), 5u);
}

// A tier drops what it sees no use of; RAM's favourites are stored again.
TEST(TieringTest, WhatIsUsedInRamStaysInTheTier) {
  Objects objects;
  TieredWorld w(64, objects);
  const std::vector<TokenId> tokens = salted_tokens(200);
  w.serve(tokens);
  objects.clear();
  EXPECT_EQ(w.serve(branch_of(tokens, 130, 150, 1)).reused_tokens, 130);
  EXPECT_EQ(objects.size(), 4u);
}

TEST(TieringTest, WhatATierWithoutAnIndexLostComesBack) {
  Objects objects;
  TieredWorld w(64, objects, kOneGroup, Index::kAskedFor);
  const std::vector<TokenId> tokens = salted_tokens(200);
  w.serve(tokens);
  ASSERT_EQ(objects.size(), 6u);
  objects.clear();
  const int n_asks = w.tier->n_asks;
  w.serve(tokens);  // what was put a moment ago is believed to be there
  EXPECT_EQ(w.tier->n_asks, n_asks);
  EXPECT_TRUE(objects.empty());
  w.clock.advance_us(61'000'000);
  w.serve(tokens);  // asks
  EXPECT_TRUE(objects.empty());
  w.serve(tokens);
  EXPECT_EQ(objects.size(), 6u);
}

TEST(TieringTest, ASlowAnswerIsNotWaitedForAgain) {
  Objects objects;
  TieredWorld w(64, objects, kOneGroup, Index::kAskedFor);
  w.tier->answers = FakeTier::Answers::kWhenFinished;
  w.tiering->set_compute_cost(ModelId(0), 10);  // 192 tokens in 1,920 us
  const auto waits = [&](int salt, KvLease& lease) {
    return std::holds_alternative<WaitOn>(w.admit(lease, salted_tokens(200, salt), 200));
  };
  const auto leave = [&](KvLease& lease) {
    w.commit(lease);
    w.release(lease);
    w.tier->finish(w.tier->n_waiting());
    w.poll();
  };
  KvLease first(ModelId(0), {}), second(ModelId(0), {}), third(ModelId(0), {});
  EXPECT_TRUE(waits(1, first));
  w.clock.advance_us(5'000);  // by the engine's clock its deadline is long past
  KvLease other(ModelId(0), {});
  EXPECT_FALSE(waits(2, other));  // the first ask is still out, longer than another one's work
  w.tier->finish(1);
  w.poll();
  EXPECT_FALSE(waits(1, first));
  leave(other);
  leave(first);
  EXPECT_FALSE(waits(3, second));
  leave(second);
  w.clock.advance_us(11'000'000);  // it may have been busy then
  EXPECT_TRUE(waits(4, third));
  w.sound({&third});
}

TEST(TieringTest, AShortQueue) {
  const std::vector<TokenId> tokens = salted_tokens(400);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  w.tier->most_queued = 3;
  EXPECT_EQ(w.serve(tokens).reused_tokens, 384);
  TieredWorld down(64, objects);
  down.tier->is_down = true;  // says what it has, and has it not
  EXPECT_EQ(down.serve(tokens).reused_tokens, 0);
  EXPECT_EQ(down.n_waits, 0);
}

TEST(TieringTest, WhoOptsOutStoresAllTheSame) {
  Objects objects;
  TieredWorld w(64, objects);
  KvLease lease(ModelId(0), {});
  lease.reuse = PrefixReuse::kNone;
  w.serve(lease, salted_tokens(100));
  w.release(lease);
  w.poll();
  EXPECT_EQ(objects.size(), 3u);
  w.index.clear();
  lease.reuse = PrefixReuse::kNone;
  EXPECT_EQ(w.serve(lease, salted_tokens(100)).reused_tokens, 0);
  EXPECT_EQ(w.tier->n_gets, 0);
  w.release(lease);
}

TEST(TieringTest, ClosedWhileItLoads) {
  const std::vector<TokenId> tokens = salted_tokens(400);
  Objects objects = stored(tokens);
  TieredWorld w(64, objects);
  w.tier->answers = FakeTier::Answers::kWhenFinished;
  KvLease lease(ModelId(0), {});
  ASSERT_TRUE(std::holds_alternative<WaitOn>(w.admit(lease, tokens, 200)));
  EXPECT_GT(w.live_blocks(), 0u);
  w.release(lease);
  w.tiering.reset();
  EXPECT_EQ(w.live_blocks(), 0u);
}

}  // namespace
}  // namespace pagoda::kv
