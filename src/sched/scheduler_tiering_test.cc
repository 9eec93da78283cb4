// The scheduler over caches whose blocks come back from a tier: nobody stops for a load, and no token changes.
#include <gtest/gtest.h>

#include <random>

#include "kv/fake_tier.h"
#include "sched/test_world.h"

namespace pagoda::sched {
namespace {

struct TieredWorld : World {
  TieredWorld(size_t n_extents, const SchedConfig& config, kv::FakeTier::Objects& objects,
              kv::FakeTier::Index index = kv::FakeTier::Index::kKept)
      : World(n_extents, config, Prefixes::kTiered) {
    auto fake = std::make_unique<kv::FakeTier>(objects, tiering->io(), index);
    tier = fake.get();
    tiering->add_store(std::move(fake));
  }
  // Until all have ended; a turn without rows is one in which a load may come.
  void run_tiered(int budget = 100000) {
    while (!scheduler.idle() && --budget > 0 && !testing::Test::HasFatalFailure()) {
      if (!step()) clock.advance_us(100);
    }
    ASSERT_GT(budget, 0) << "no progress";
    while (tiering->is_storing() || tiering->is_loading()) {
      if (tier->answers == kv::FakeTier::Answers::kWhenFinished) tier->finish(1000);
      scheduler.next_step(plan);
      ASSERT_TRUE(plan.empty());
    }
    ASSERT_SOUND(scheduler.check_integrity());
  }

  kv::FakeTier* tier = nullptr;
};

SequenceSpec spec_of(uint64_t id, std::vector<TokenId> prompt, kv::ModelId model = kModel) {
  return {.id = seq(id), .model = model, .prompt = std::move(prompt)};
}

// A first world computes the prompt, and its tier keeps it.
void store(std::vector<TokenId> prompt, kv::FakeTier::Objects& objects) {
  TieredWorld w(64, {.step_tokens = 64}, objects);
  ASSERT_TRUE(w.submit(spec_of(1, std::move(prompt)), 5));
  w.run_tiered();
  w.check_done();
}

TEST(SchedulerTieringTest, OthersRunWhileOneWaits) {
  kv::FakeTier::Objects objects;
  ASSERT_NO_FATAL_FAILURE(store(prompt_of(200, 1), objects));
  TieredWorld w(64, {.step_tokens = 64}, objects);
  w.tier->answers = kv::FakeTier::Answers::kWhenFinished;
  ASSERT_TRUE(w.submit(spec_of(2, prompt_of(200, 1)), 5));
  ASSERT_TRUE(w.submit(spec_of(3, prompt_of(50, 3)), 20));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(w.step());
    ASSERT_EQ(w.plan.rows.size(), 1u);
    EXPECT_EQ(w.plan.rows[0].seq, seq(3));
    ASSERT_SOUND(w.scheduler.check_integrity());
  }
  w.tier->finish(100);
  ASSERT_TRUE(w.step());
  ASSERT_EQ(w.plan.rows.size(), 2u);
  EXPECT_EQ(w.plan.rows[1].first_position, 192);
  EXPECT_EQ(w.scheduler.find(seq(2))->cache_use().reused_tokens, 192);
  EXPECT_EQ(w.scheduler.find(seq(2))->lease.restored_tokens()[0], 192);
  w.run_tiered();
  w.check_done();
}

TEST(SchedulerTieringTest, WhoWaitedTooLongComputes) {
  kv::FakeTier::Objects objects;
  ASSERT_NO_FATAL_FAILURE(store(prompt_of(200, 1), objects));
  TieredWorld w(64, {.step_tokens = 64}, objects);
  w.tier->answers = kv::FakeTier::Answers::kWhenFinished;
  ASSERT_TRUE(w.submit(spec_of(2, prompt_of(200, 1)), 5));
  EXPECT_FALSE(w.step());
  ASSERT_TRUE(w.scheduler.wake_us());
  w.clock.advance_us(*w.scheduler.wake_us() - w.clock.now_us());
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.plan.rows[0].first_position, 0);
  EXPECT_EQ(w.scheduler.find(seq(2))->cache_use().misses[0].reason, kv::MissReason::kLoadSlow);
  w.run_tiered();
  w.check_done();
}

// The load holds all memory for a while: that is no reason to end anybody.
TEST(SchedulerTieringTest, NobodyEndsForWantOfLoadingBlocks) {
  kv::FakeTier::Objects objects;
  ASSERT_NO_FATAL_FAILURE(store(prompt_of(350, 1), objects));
  TieredWorld w(6, {.step_tokens = 64}, objects);
  w.tier->answers = kv::FakeTier::Answers::kWhenFinished;
  ASSERT_TRUE(w.submit(spec_of(2, prompt_of(350, 1)), 5));
  EXPECT_FALSE(w.step());
  w.scheduler.cancel(seq(2));
  ASSERT_TRUE(w.submit(spec_of(3, prompt_of(300, 3)), 5));
  for (int i = 0; i < 20; ++i) w.step();
  ASSERT_NE(w.scheduler.find(seq(3)), nullptr);
  EXPECT_FALSE(w.step());
  EXPECT_TRUE(w.tiering->is_loading());
  w.tier->finish(1000);
  w.tier->answers = kv::FakeTier::Answers::kAtOnce;
  w.run_tiered();
  w.check_done();
  EXPECT_EQ(w.reasons[seq(3)], FinishReason::kStop);
}

// Five sequences that have no room together, to their ends.
void run_more_than_fit(TieredWorld& w) {
  for (int id = 1; id <= 5; ++id) ASSERT_TRUE(w.submit(id, 20, 200));
  int budget = 20000;
  while (!w.scheduler.idle() && --budget > 0) {
    if (!w.step()) w.clock.advance_us(100);
    ASSERT_SOUND(w.scheduler.check_integrity());
  }
  ASSERT_GT(budget, 0);
}

TEST(SchedulerTieringTest, APreemptedSequenceResumesFromTheTier) {
  kv::FakeTier::Objects objects;
  TieredWorld w(9, {.step_tokens = 256}, objects);
  ASSERT_NO_FATAL_FAILURE(run_more_than_fit(w));
  w.run_tiered();
  w.check_done();
  EXPECT_GT(w.scheduler.stats().preemptions, 0u);
  EXPECT_GT(w.tiering->stats().loaded_blocks, 0u);
}

TEST(SchedulerTieringTest, APreemptedSequenceComputesWhereThatIsFaster) {
  kv::FakeTier::Objects objects;
  TieredWorld w(9, {.step_tokens = 256}, objects);
  w.tier->given_stats.read_bytes_per_s = 1;
  w.tiering->set_compute_cost(kModel, 1);
  ASSERT_NO_FATAL_FAILURE(run_more_than_fit(w));
  w.check_done();
  EXPECT_GT(w.scheduler.stats().preemptions, 0u);
  EXPECT_GT(w.tiering->stats().loads_slow, 0u);
  EXPECT_EQ(w.tiering->stats().loaded_blocks, 0u);
}

// Prompts that begin alike, a budget for a few of them, tiers that are slow, lose, corrupt, and go away.
TEST(SchedulerTieringTest, RandomLoads) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  uint64_t n_loaded = 0, n_cut = 0;
  for (unsigned round = 0; round < 12 && !testing::Test::HasFatalFailure(); ++round) {
    std::mt19937 random(seed + round);
    const auto draw = [&](unsigned n) { return random() % n; };
    kv::FakeTier::Objects objects;
    for (int start = 0; start < 2; ++start) {
      SchedConfig config;
      config.step_tokens = static_cast<int32_t>(16 + draw(150));
      TieredWorld w(12 + draw(40), config, objects,
                    round % 2 == 0 ? kv::FakeTier::Index::kKept : kv::FakeTier::Index::kAskedFor);
      w.tier->answers = kv::FakeTier::Answers::kWhenFinished;
      w.tier->most_queued = 1 + draw(40);
      uint64_t id = 0;
      for (int turn = 0; turn < 1500 || !w.scheduler.idle(); ++turn) {
        ASSERT_LT(turn, 100000) << "no progress";
        if (turn < 1500 && draw(20) == 0) {
          std::vector<TokenId> prompt = prompt_of(static_cast<int>(1 + draw(250)), static_cast<int>(draw(4)));
          prompt.push_back(TokenId(static_cast<int32_t>(draw(3))));
          ASSERT_TRUE(w.submit(spec_of(++id, std::move(prompt), draw(3) == 0 ? kOther : kModel),
                               static_cast<int>(1 + draw(60))));
        }
        if (id > 0 && draw(100) == 0) w.scheduler.cancel(seq(1 + draw(static_cast<unsigned>(id))));
        if (draw(200) == 0) w.tier->is_down = !w.tier->is_down;
        if (!objects.empty() && draw(30) == 0) {
          const auto& [object, bytes] = *objects.begin();
          if (draw(2) == 0) {
            w.tier->faults[object.key.bytes] = draw(2) ? kv::TierOutcome::kCorrupt : kv::TierOutcome::kFailed;
          } else {
            w.tier->erase(object);
          }
        }
        for (unsigned n = draw(4); n > 0 && w.tier->n_waiting() > 0; --n) {
          w.tier->finish_at(draw(static_cast<unsigned>(w.tier->n_waiting())));
        }
        if (!w.step()) w.clock.advance_us(200);
        if (turn % 20 == 0) ASSERT_SOUND(w.scheduler.check_integrity());
        if (testing::Test::HasFatalFailure()) return;
      }
      w.run_tiered();
      w.check_done();
      n_loaded += w.tiering->stats().loaded_blocks;
      n_cut += w.tiering->stats().loads_cut;
    }
  }
  EXPECT_GT(n_loaded, 100u);
  EXPECT_GT(n_cut, 5u);
}

}  // namespace
}  // namespace pagoda::sched
