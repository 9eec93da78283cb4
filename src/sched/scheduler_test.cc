#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "sched/fake_executor.h"

namespace pagoda::sched {
namespace {

#define ASSERT_SOUND(object)                       \
  do {                                             \
    const Status sound_ = (object);                \
    ASSERT_TRUE(sound_) << sound_.error().message; \
  } while (0)

constexpr kv::ModelId kModel{0}, kOther{1};

std::vector<TokenId> prompt_of(int n, int salt) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(TokenId((i * 7919 + salt * 104729 + 1) % 32003));
  return tokens;
}

// A cache that makes chosen sequences wait: those whose first prompt token is a key, for its ticket.
class WaitingCache final : public kv::Cache {
 public:
  using Cache::Cache;
  kv::Admission admit(kv::KvLease& lease, std::span<const TokenId> token_ids, int32_t n_new,
                      std::vector<kv::BlockOp>& ops) override {
    ++n_asked[token_ids[0].value];
    const auto wait = waits.find(token_ids[0].value);
    if (wait != waits.end() && lease.n_written() == wait->second.at && lease.patience == kv::Patience::kMayWait) {
      return kv::WaitOn{wait->second.ticket, wait->second.deadline_us};
    }
    return Cache::admit(lease, token_ids, n_new, ops);
  }
  struct Wait {
    kv::TicketId ticket;
    int64_t deadline_us;
    int32_t at = 0;  // n_written at which it waits
  };
  std::map<int32_t, Wait> waits;
  std::map<int32_t, int> n_asked;
};

// Two models over one pool: model 0 has a full and a window group, model 1 a full one. Extents of 1 KiB hold 4, 3 and 2 blocks.
struct World {
  World(size_t n_extents, const SchedConfig& config)
      : pool({.budget_bytes = n_extents * 1024, .extent_bytes = 1024}),
        scheduler(config, clock, policy),
        executor(pool) {
    caches.push_back(std::make_unique<WaitingCache>(
        pool, kModel, std::vector<kv::GroupSpec>{{.block_bytes = 256}, {.block_bytes = 320, .window_tokens = 40}}));
    caches.push_back(std::make_unique<WaitingCache>(pool, kOther, std::vector<kv::GroupSpec>{{.block_bytes = 512}}));
    for (auto& cache : caches) scheduler.add_model(*cache);
  }

  Status submit(int id, int n_prompt, int n_wanted, kv::ModelId model = kModel) {
    return submit({.id = SeqId(static_cast<uint64_t>(id)), .model = model, .prompt = prompt_of(n_prompt, id)},
                  n_wanted);
  }
  Status submit(SequenceSpec spec, int n_wanted) {
    const SeqId id = spec.id;
    const std::vector<TokenId> prompt = spec.prompt;
    TRY(scheduler.submit(std::move(spec)));
    prompts[id] = prompt;
    wanted[id] = n_wanted;
    return {};
  }

  // One turn: plan, run, commit, finish those that have all they wanted. False if there was nothing to run.
  bool step() {
    scheduler.next_step(plan);
    for (const EndedSeq& ended : plan.ended) reasons[ended.seq] = ended.reason;
    if (plan.empty()) return false;
    EXPECT_LE(plan.n_tokens(), max_rows);
    executor.run(scheduler, *caches[plan.model.value], plan, outcomes);
    if (testing::Test::HasFatalFailure()) return false;
    scheduler.cancel(cancel_while_running);
    commit();
    return true;
  }

  void commit() {
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      if (fails.contains(plan.rows[i].seq)) outcomes[i].kind = StepOutcome::Kind::kFailed;
    }
    const std::vector<SeqRows> rows = plan.rows;
    scheduler.commit_step(plan, outcomes);
    for (size_t i = 0; i < rows.size(); ++i) {
      const SeqId id = rows[i].seq;
      if (outcomes[i].kind != StepOutcome::Kind::kSampled || !scheduler.find(id)) continue;
      tokens[id].push_back(outcomes[i].token);
      if (static_cast<int>(tokens[id].size()) < wanted[id]) continue;
      reasons[id] = FinishReason::kStop;
      scheduler.finish(id, FinishReason::kStop);
    }
    clock.advance_us(1000);
  }

  // Until nothing is left. `budget` bounds the steps: no progress is a failure, not a hang.
  void run_all(int budget = 100000) {
    while (step() && --budget > 0 && !testing::Test::HasFatalFailure()) {
    }
    ASSERT_GT(budget, 0) << "no progress";
  }

  // Every sequence that stopped by itself has the tokens of a lone run; nothing is held.
  void check_done() {
    ASSERT_TRUE(scheduler.idle());
    ASSERT_EQ(pool.stats().live_blocks, 0u);
    ASSERT_EQ(pool.stats().free_extents, pool.n_extents());
    for (const auto& [id, prompt] : prompts) {
      const std::vector<TokenId>& got = tokens[id];
      ASSERT_EQ(got, expected_tokens(prompt, static_cast<int>(got.size()))) << "sequence " << id.value;
      if (reasons[id] == FinishReason::kStop) {
        ASSERT_EQ(got.size(), static_cast<size_t>(wanted[id]));
      }
    }
  }

  kv::BlockPool pool;
  FakeClock clock;
  Fcfs policy;
  std::vector<std::unique_ptr<WaitingCache>> caches;
  Scheduler scheduler;
  FakeExecutor executor;
  StepPlan plan;
  std::vector<StepOutcome> outcomes;
  std::map<SeqId, std::vector<TokenId>> prompts, tokens;
  std::map<SeqId, int> wanted;
  std::map<SeqId, FinishReason> reasons;
  std::set<SeqId> fails;
  SeqId cancel_while_running;
  int32_t max_rows = 1 << 30;
};

SeqId seq(uint64_t id) { return SeqId(id); }

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

// Random loads: lengths, arrivals, cancels, failures, tickets, models, chunks and budgets. Everything ends, and ends right.
struct Load {
  unsigned seed;
  std::optional<SchedConfig> config;  // random if absent
  size_t n_extents;
  int n_sequences;
  int checks_every;
};

struct LoadResult {
  int n_stopped = 0;  // with all the tokens they wanted
  uint64_t preemptions = 0;
};

void run_load(const Load& load, LoadResult& result) {
  SCOPED_TRACE(testing::Message() << "seed " << load.seed);
  std::mt19937 random(load.seed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int32_t step_tokens = 1 + draw(200), chunk_tokens = draw(2) ? 0 : 1 + draw(40);
  const SchedConfig random_config{.step_tokens = step_tokens,
                                  .chunk_tokens = chunk_tokens,
                                  .max_running = 1 + draw(40),
                                  .max_waiting = 20 + draw(100),
                                  .kv_reuse = draw(8) ? KvReuse::kOn : KvReuse::kOff};
  const SchedConfig config = load.config.value_or(random_config);
  World w(load.n_extents, config);
  w.max_rows = config.max_step_rows();
  int n_submitted = 0;
  std::vector<kv::TicketId> tickets;
  const auto submit_one = [&] {
    const int id = ++n_submitted;
    const kv::ModelId model = draw(3) ? kModel : kOther;
    const int most = std::min(150, w.caches[model.value]->capacity_tokens());
    SequenceSpec spec{.id = seq(static_cast<uint64_t>(id)), .model = model, .prompt = prompt_of(1 + draw(most), id)};
    if (draw(30) == 0) {
      const int32_t at = kv::kBlockTokens * draw(3);
      w.caches[model.value]->waits[spec.prompt[0].value] = {kv::TicketId(static_cast<uint64_t>(id)),
                                                            w.clock.now_us() + draw(100'000), at};
      tickets.push_back(kv::TicketId(static_cast<uint64_t>(id)));
    }
    if (draw(100) == 0) w.fails.insert(spec.id);
    if (draw(20) == 0) w.scheduler.cancel(seq(static_cast<uint64_t>(1 + draw(id))));
    if (draw(20) == 0) w.cancel_while_running = seq(static_cast<uint64_t>(std::max(1, id - draw(20))));
    const Status status = w.submit(std::move(spec), 1 + draw(40));
    if (!status) {
      ASSERT_EQ(status.error().code, ErrorCode::kOverloaded);
    }
  };
  int64_t budget = int64_t{load.n_sequences} * 100'000;
  for (int step = 0; n_submitted < load.n_sequences || !w.scheduler.idle(); ++step) {
    ASSERT_GT(--budget, 0) << "no progress";
    for (int i = draw(4); i > 0 && n_submitted < load.n_sequences; --i) {
      const bool is_full = w.scheduler.stats().waiting >= static_cast<uint64_t>(config.max_waiting);
      if (!is_full || draw(1000) == 0) submit_one();
    }
    if (draw(10) == 0 && !tickets.empty())
      w.scheduler.complete(tickets[static_cast<size_t>(draw(static_cast<int>(tickets.size())))]);
    const bool ran = w.step();
    if (testing::Test::HasFatalFailure()) return;
    if (!ran && n_submitted == load.n_sequences && !w.scheduler.idle()) {
      // Whoever is left waits for a ticket.
      const std::optional<int64_t> wake_us = w.scheduler.wake_us();
      ASSERT_TRUE(wake_us) << "stuck";
      w.clock.advance_us(std::max<int64_t>(0, *wake_us - w.clock.now_us()));
    }
    if (step % load.checks_every == 0) ASSERT_SOUND(w.scheduler.check_integrity());
  }
  w.check_done();
  for (const auto& [id, reason] : w.reasons) result.n_stopped += reason == FinishReason::kStop ? 1 : 0;
  result.preemptions += w.scheduler.stats().preemptions;
}

TEST(SchedulerRandomTest, SmallBudgets) {
  std::random_device device;
  LoadResult result;
  for (int round = 0; round < 60; ++round) run_load({device(), {}, 4 + device() % 30, 60, 1}, result);
  EXPECT_GT(result.n_stopped, 60 * 20);
  EXPECT_GT(result.preemptions, 100u);
}

TEST(SchedulerRandomTest, LargeBudgets) {
  std::random_device device;
  LoadResult result;
  for (int round = 0; round < 10; ++round) run_load({device(), {}, 200 + device() % 300, 200, 5}, result);
  EXPECT_GT(result.n_stopped, 10 * 100);
}

TEST(SchedulerRandomTest, TenThousandSequences) {
  LoadResult result;
  const SchedConfig config{.step_tokens = 256, .max_running = 64, .max_waiting = 500};
  run_load({std::random_device{}(), config, 60, 10'000, 1000}, result);
  EXPECT_GT(result.n_stopped, 8'000);
}

}  // namespace
}  // namespace pagoda::sched
