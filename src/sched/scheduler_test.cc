#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sched/test_world.h"

namespace pagoda::sched {
namespace {

TEST(SchedulerTest, SameTokensInAnyChunk) {
  for (const int32_t chunk : {0, 1, 7, 32, 256}) {
    for (const KvReuse reuse : {KvReuse::kOn, KvReuse::kOff}) {
      World w(64, {.step_tokens = 100, .chunk_tokens = chunk, .kv_reuse = reuse});
      ASSERT_TRUE(w.submit(1, 300, 40));
      ASSERT_TRUE(w.submit(2, 1, 40));
      w.run_all();
      w.check_done();
      EXPECT_EQ(w.tokens[seq(1)].size(), 40u);
    }
  }
}

TEST(SchedulerTest, DecodesComeFirstAndPrefillsGetTheRest) {
  World w(64, {.step_tokens = 20});
  for (int id = 1; id <= 3; ++id) ASSERT_TRUE(w.submit(id, 4, 50));
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.plan.n_tokens(), 12);  // three whole prompts
  ASSERT_TRUE(w.submit(4, 100, 50));
  ASSERT_TRUE(w.step());
  ASSERT_EQ(w.plan.rows.size(), 4u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(w.plan.rows[i].n_tokens, 1);
    EXPECT_EQ(w.plan.rows[i].sampling, Sampling::kLastRow);
    EXPECT_EQ(w.plan.rows[i].n_logits, 1);
  }
  EXPECT_EQ(w.plan.rows[3].n_tokens, 17);
  EXPECT_EQ(w.plan.rows[3].sampling, Sampling::kNone);
  EXPECT_EQ(w.plan.rows[3].n_logits, 0);
  w.run_all();
  w.check_done();
}

TEST(SchedulerTest, StepsAreLongerWhileNobodyDecodes) {
  const SchedConfig config{.step_tokens = 20, .quiet_factor = 2, .max_running = 4};
  EXPECT_EQ(config.max_step_rows(), 40);
  World w(64, config);
  w.max_rows = config.max_step_rows();
  ASSERT_TRUE(w.submit(1, 50, 5));
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.plan.n_tokens(), 40);
  ASSERT_TRUE(w.submit(2, 100, 5));
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.plan.n_tokens(), 40);  // 10 and 30
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.plan.n_tokens(), 20);  // 1 and 19
  w.run_all();
  w.check_done();
}

TEST(SchedulerTest, LogitsOfAStepAreBounded) {
  const SchedConfig config{.step_tokens = 40, .max_logits = 27, .max_running = 20};
  EXPECT_EQ(config.max_step_logits(), 27);
  World w(64, config);
  for (int id = 1; id <= 3; ++id) {
    ASSERT_TRUE(w.submit(
        {.id = seq(static_cast<uint64_t>(id)), .prompt = prompt_of(60, id), .prompt_logits = PromptLogits::kAll}, 5));
  }
  ASSERT_TRUE(w.submit(4, 60, 5));
  std::map<SeqId, int> n_logits;
  while (w.step() && !testing::Test::HasFatalFailure()) {
    int n_in_step = 0;
    for (const SeqRows& rows : w.plan.rows) {
      n_logits[rows.seq] += rows.n_logits;
      n_in_step += rows.n_logits;
    }
    ASSERT_LE(n_in_step, config.max_step_logits());
  }
  w.check_done();
  for (int id = 1; id <= 3; ++id) EXPECT_EQ(n_logits[seq(static_cast<uint64_t>(id))], 64);
}

TEST(SchedulerTest, PrefillsGetATenthWhateverRuns) {
  const SchedConfig config{.step_tokens = 20, .max_running = 40};
  EXPECT_EQ(config.max_step_rows(), 42);
  World w(200, config);
  w.max_rows = config.max_step_rows();
  for (int id = 1; id <= 30; ++id) ASSERT_TRUE(w.submit(id, 1, 100));
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(w.step());
  ASSERT_TRUE(w.submit(31, 10, 5));
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.plan.rows.size(), 31u);
  EXPECT_EQ(w.plan.rows.back().n_tokens, 2);
  w.run_all();
  w.check_done();
}

TEST(SchedulerTest, RefusesWhatItCannotServe) {
  World w(4, {.max_waiting = 2});
  EXPECT_EQ(w.submit({.id = seq(1), .model = kv::ModelId(9), .prompt = prompt_of(1, 1)}, 1).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(w.submit({.id = seq(1), .model = kModel, .prompt = {}}, 1).error().code, ErrorCode::kInvalidArgument);
  const int capacity = w.caches[0]->capacity_tokens();
  const Status too_long = w.submit(1, capacity + 1, 1);
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(too_long.error().message.find(std::to_string(capacity)), std::string::npos);
  ASSERT_TRUE(w.submit(1, capacity, 1));
  ASSERT_TRUE(w.submit(2, 1, 1));
  EXPECT_EQ(w.submit(3, 1, 1).error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(w.scheduler.stats().waiting, 2u);
  w.run_all();
  w.check_done();
}

TEST(SchedulerTest, OutgrowingTheBudgetEndsWithLength) {
  for (const int32_t step_tokens : {1, 50, 1000}) {
    World w(5, {.step_tokens = step_tokens});
    const int capacity = w.caches[0]->capacity_tokens();
    ASSERT_TRUE(w.submit(1, capacity - 20, 1000));
    ASSERT_TRUE(w.submit(2, 10, 60));
    w.run_all();
    w.check_done();
    EXPECT_EQ(w.reasons[seq(1)], FinishReason::kLength);
    EXPECT_GE(w.tokens[seq(1)].size(), 21u);  // at least the capacity; where the window lies well, a few more
    EXPECT_EQ(w.reasons[seq(2)], FinishReason::kStop);
  }
}

TEST(SchedulerTest, PreemptsTheYoungestAndContinuesWithTheSameTokens) {
  World w(6, {.step_tokens = 256});
  for (int id = 1; id <= 4; ++id) ASSERT_TRUE(w.submit(id, 20, 200));
  std::vector<SeqId> preempted;
  while (w.step()) {
    preempted.insert(preempted.end(), w.plan.preempted.begin(), w.plan.preempted.end());
    ASSERT_SOUND(w.scheduler.check_integrity());
  }
  w.check_done();
  ASSERT_FALSE(preempted.empty());
  EXPECT_EQ(preempted.front(), seq(4));
  for (const SeqId id : preempted) EXPECT_NE(id, seq(1));  // the first in line never gives up its blocks
  EXPECT_EQ(w.scheduler.stats().preemptions, preempted.size());
}

TEST(SchedulerTest, CancelFreesBlocksWithinAStep) {
  World w(64, {.step_tokens = 64});
  for (int id = 1; id <= 3; ++id) ASSERT_TRUE(w.submit(id, 30, 20));
  ASSERT_TRUE(w.step());
  w.scheduler.next_step(w.plan);
  w.executor.run(w.scheduler, *w.caches[0], w.plan, w.outcomes);
  const uint64_t live = w.pool.stats().live_blocks;
  w.scheduler.cancel(seq(1));  // while its rows run
  EXPECT_EQ(w.pool.stats().live_blocks, live);
  w.commit();
  EXPECT_EQ(w.scheduler.find(seq(1)), nullptr);
  EXPECT_LT(w.pool.stats().live_blocks, live);
  w.scheduler.cancel(seq(2));  // between steps
  w.scheduler.cancel(seq(99));
  w.scheduler.cancel(seq(2));
  EXPECT_EQ(w.scheduler.find(seq(2)), nullptr);
  ASSERT_TRUE(w.submit(4, 5, 5));
  w.scheduler.cancel(seq(4));  // before it ever ran
  ASSERT_SOUND(w.scheduler.check_integrity());
  w.run_all();
  w.check_done();
  EXPECT_EQ(w.reasons[seq(3)], FinishReason::kStop);
  EXPECT_EQ(w.scheduler.stats().finished, 4u);
}

TEST(SchedulerTest, AFailedSequenceStopsNobody) {
  World w(64, {});
  for (int id = 1; id <= 4; ++id) ASSERT_TRUE(w.submit(id, 30, 20));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(w.step());
  w.fails.insert(seq(2));
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.scheduler.find(seq(2)), nullptr);
  w.run_all();
  w.check_done();
  for (const int id : {1, 3, 4}) EXPECT_EQ(w.tokens[seq(static_cast<uint64_t>(id))].size(), 20u);
}

TEST(SchedulerTest, WaitsForATicket) {
  World w(64, {});
  w.caches[0]->waits[prompt_of(1, 1)[0].value] = {kv::TicketId(5), 1'000'000};
  ASSERT_TRUE(w.submit(1, 30, 10));
  EXPECT_FALSE(w.step());
  EXPECT_EQ(w.scheduler.wake_us(), 1'000'000);
  ASSERT_TRUE(w.submit(2, 30, 10));
  ASSERT_TRUE(w.step());  // one who waits holds up nobody
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.caches[0]->n_asked[prompt_of(1, 1)[0].value], 1);
  w.caches[0]->waits.clear();
  w.scheduler.complete(kv::TicketId(4));
  EXPECT_TRUE(w.scheduler.wake_us());
  w.scheduler.complete(kv::TicketId(5));
  EXPECT_FALSE(w.scheduler.wake_us());
  w.run_all();
  w.check_done();
  EXPECT_EQ(w.tokens[seq(1)].size(), 10u);
}

TEST(SchedulerTest, RecomputesAfterATicketsDeadline) {
  World w(64, {});
  w.caches[0]->waits[prompt_of(1, 1)[0].value] = {kv::TicketId(5), 50'000};
  ASSERT_TRUE(w.submit(1, 30, 10));
  EXPECT_FALSE(w.step());
  w.clock.advance_us(49'999);
  EXPECT_FALSE(w.step());
  w.clock.advance_us(1);
  w.run_all();
  w.check_done();
  EXPECT_EQ(w.tokens[seq(1)].size(), 10u);
}

TEST(SchedulerTest, OneSetAsideWithBlocksGivesThemUp) {
  World w(3, {.step_tokens = 64, .chunk_tokens = 32});
  w.caches[0]->waits[prompt_of(1, 2)[0].value] = {kv::TicketId(5), int64_t{1} << 60, 32};  // behind its first block
  ASSERT_TRUE(w.submit(1, 20, 190));
  ASSERT_TRUE(w.submit(2, 60, 10));
  while (w.step()) ASSERT_SOUND(w.scheduler.check_integrity());
  EXPECT_EQ(w.tokens[seq(1)].size(), 190u);
  EXPECT_EQ(w.scheduler.stats().preemptions, 1u);
  ASSERT_NE(w.scheduler.find(seq(2)), nullptr);  // computes its first block again, and waits again
  w.scheduler.cancel(seq(2));
  w.check_done();
}

TEST(SchedulerTest, ModelsTakeTurns) {
  World w(64, {});
  for (int id = 1; id <= 4; ++id) ASSERT_TRUE(w.submit(id, 10, 20, id % 2 ? kModel : kOther));
  std::vector<uint32_t> turns;
  while (w.step()) turns.push_back(w.plan.model.value);
  w.check_done();
  for (size_t i = 1; i < turns.size(); ++i) EXPECT_NE(turns[i], turns[i - 1]);
}

TEST(SchedulerTest, OneModelTakesTheBlocksOfAnother) {
  World w(4, {.step_tokens = 64});
  ASSERT_TRUE(w.submit(1, 20, 200, kModel));
  ASSERT_TRUE(w.submit(2, 20, 150, kOther));
  ASSERT_TRUE(w.submit(3, 20, 30, kModel));
  while (w.step()) ASSERT_SOUND(w.scheduler.check_integrity());
  w.check_done();
  EXPECT_GT(w.scheduler.stats().preemptions, 0u);
}

TEST(SchedulerTest, EveryPromptLogitsOnce) {
  for (const KvReuse reuse : {KvReuse::kOn, KvReuse::kOff}) {
    World w(6, {.step_tokens = 30, .chunk_tokens = 13, .kv_reuse = reuse});
    std::map<SeqId, std::vector<int32_t>> delivered;
    for (int id = 1; id <= 4; ++id) {
      ASSERT_TRUE(w.submit({.id = seq(static_cast<uint64_t>(id)),
                            .model = kModel,
                            .prompt = prompt_of(50, id),
                            .prompt_logits = PromptLogits::kAll},
                           100));
    }
    while (w.step()) {
      for (const SeqRows& rows : w.plan.rows) {
        const int32_t end = rows.first_position + rows.n_tokens;
        for (int32_t p = end - rows.n_logits; p < end; ++p) delivered[rows.seq].push_back(p);
      }
    }
    w.check_done();
    for (auto& [id, positions] : delivered) {
      ASSERT_EQ(positions.size(), 149u);
      for (int32_t p = 0; p < 149; ++p) EXPECT_EQ(positions[static_cast<size_t>(p)], p);
    }
    EXPECT_TRUE(w.scheduler.stats().preemptions > 0 || reuse == KvReuse::kOff) << "the budget should be too small";
  }
}

TEST(SchedulerTest, WithoutReuseBlocksAreReturnedAfterEveryToken) {
  World w(64, {.step_tokens = 32, .kv_reuse = KvReuse::kOff});
  ASSERT_TRUE(w.submit(1, 100, 5));
  for (int token = 1; token <= 5; ++token) {
    for (int chunk = 0; chunk < 4; ++chunk) {
      ASSERT_TRUE(w.step());
      EXPECT_EQ(w.plan.rows[0].first_position, 32 * chunk);
    }
    EXPECT_EQ(w.pool.stats().live_blocks, 0u);
    EXPECT_EQ(w.tokens[seq(1)].size(), static_cast<size_t>(token));
  }
  EXPECT_FALSE(w.step());
  w.check_done();
  EXPECT_EQ(w.scheduler.stats().computed_tokens, 100u + 101 + 102 + 103 + 104);
}

TEST(SchedulerTest, DestructionReturnsBlocks) {
  kv::BlockPool pool({.budget_bytes = 4096, .extent_bytes = 1024});
  kv::Cache cache(pool, kModel, std::vector<kv::GroupSpec>{{.block_bytes = 256}});
  const FakeClock clock;
  const Fcfs policy;
  {
    Scheduler scheduler({}, clock, policy);
    scheduler.add_model(cache);
    ASSERT_TRUE(scheduler.submit({.id = seq(1), .model = kModel, .prompt = prompt_of(40, 1)}));
    StepPlan plan;
    scheduler.next_step(plan);
    EXPECT_EQ(pool.stats().live_blocks, 2u);
  }
  EXPECT_EQ(pool.stats().live_blocks, 0u);
}

}  // namespace
}  // namespace pagoda::sched
