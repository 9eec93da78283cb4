#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "base/test_seed.h"
#include "sched/scheduler.h"
#include "sched/test_world.h"

namespace pagoda::sched {
namespace {

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
  uint64_t reused_tokens = 0;
  int n_replaced = 0;
  int64_t n_steps = 0;
};

struct SequenceOf {
  const Sequence* seq;
  int capacity;
};
SequenceOf sequence_of(const World& w, int id) {
  const Sequence* seq = w.scheduler.find(SeqId(static_cast<uint64_t>(id)));
  return {seq, seq ? w.caches[seq->model().value]->capacity_tokens() : 0};
}

// Its beginning and its end, as a context policy cuts it.
std::vector<TokenId> half_of(std::span<const TokenId> tokens) {
  std::vector<TokenId> half(tokens.begin(),
                            tokens.begin() + static_cast<ptrdiff_t>(std::min<size_t>(4, tokens.size())));
  half.insert(half.end(), tokens.begin() + static_cast<ptrdiff_t>(std::max(half.size(), tokens.size() / 2)),
              tokens.end());
  return half;
}

void run_load(const Load& load, LoadResult& result) {
  SCOPED_TRACE(testing::Message() << "seed " << load.seed);
  std::mt19937 random(load.seed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int32_t step_tokens = 1 + draw(200), chunk_tokens = draw(2) ? 0 : 1 + draw(40);
  const int32_t max_running = 1 + draw(40);
  const SchedConfig random_config{.step_tokens = step_tokens,
                                  .chunk_tokens = chunk_tokens,
                                  .max_logits = max_running + 1 + draw(60),
                                  .max_running = max_running,
                                  .max_waiting = 20 + draw(100),
                                  .kv_reuse = draw(8) ? KvReuse::kOn : KvReuse::kOff};
  const SchedConfig config = load.config.value_or(random_config);
  const Prefixes prefixes = draw(3) ? Prefixes::kOn : Prefixes::kOff;
  const int n_salts = draw(2) ? 1 << 30 : 1 + draw(6);  // how many different beginnings
  World w(load.n_extents, config, prefixes);
  w.max_rows = config.max_step_rows();
  int n_submitted = 0;
  std::vector<kv::TicketId> tickets;
  const auto submit_one = [&] {
    const int id = ++n_submitted;
    const kv::ModelId model = draw(3) ? kModel : kOther;
    const int most = std::min(150, w.caches[model.value]->capacity_tokens());
    std::vector<TokenId> prompt = prompt_of(1 + draw(most), id % n_salts);
    if (draw(2)) prompt.back() = TokenId(id);
    SequenceSpec spec{.id = seq(static_cast<uint64_t>(id)), .model = model, .prompt = std::move(prompt)};
    if (draw(30) == 0) {
      const int32_t at = kv::kBlockTokens * draw(3);
      w.caches[model.value]->waits[spec.prompt[0].value] = {kv::TicketId(static_cast<uint64_t>(id)),
                                                            w.clock.now_us() + draw(100'000), at};
      tickets.push_back(kv::TicketId(static_cast<uint64_t>(id)));
    }
    if (draw(5) == 0) spec.prompt_logits = PromptLogits::kAll;
    if (draw(100) == 0) w.fails.insert(spec.id);
    if (draw(20) == 0) w.scheduler.cancel(seq(static_cast<uint64_t>(1 + draw(id))));
    if (draw(20) == 0) w.cancel_while_running = seq(static_cast<uint64_t>(std::max(1, id - draw(20))));
    const Status status = w.submit(std::move(spec), 1 + draw(40));
    if (!status) {
      ASSERT_EQ(status.error().code, ErrorCode::kOverloaded);
    }
  };
  // Of anyone, in whatever state: new tokens, or some of its own.
  const auto replace_one = [&] {
    const SequenceOf victim = sequence_of(w, draw(n_submitted) + 1);
    if (!victim.seq) return;
    std::vector<TokenId> list = prompt_of(1 + draw(std::min(150, victim.capacity)), draw(n_salts));
    if (draw(2)) list = half_of(victim.seq->tokens());
    ++result.n_replaced;
    if (draw(2))
      w.replace(victim.seq->id(), list);
    else
      w.replace_while_running[victim.seq->id()] = list;
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
    if (n_submitted > 0 && draw(10) == 0) replace_one();
    const bool ran = w.step();
    if (testing::Test::HasFatalFailure()) return;
    if (!ran && n_submitted == load.n_sequences && !w.scheduler.idle()) {
      // Whoever is left waits for a ticket.
      const std::optional<int64_t> wake_us = w.scheduler.wake_us();
      ASSERT_TRUE(wake_us) << "stuck";
      w.clock.advance_us(std::max<int64_t>(0, *wake_us - w.clock.now_us()));
    }
    ++result.n_steps;
    if (step % load.checks_every == 0) ASSERT_SOUND(w.scheduler.check_integrity());
  }
  w.check_done();
  for (const auto& [id, reason] : w.reasons) result.n_stopped += reason == FinishReason::kStop ? 1 : 0;
  result.preemptions += w.scheduler.stats().preemptions;
  result.reused_tokens += w.scheduler.stats().reused_tokens;
  EXPECT_TRUE(prefixes == Prefixes::kOn || w.scheduler.stats().reused_tokens == 0);
}

Load small_load(std::mt19937& seeds) {
  const auto seed = static_cast<unsigned>(seeds());
  return {seed, {}, 4 + seed % 30, 60, 1};
}

TEST(SchedulerRandomTest, SmallBudgets) {
  std::mt19937 seeds(test_seed());
  LoadResult result;
  for (int round = 0; round < 60; ++round) run_load(small_load(seeds), result);
  EXPECT_GT(result.n_stopped, 60 * 20);
  EXPECT_GT(result.preemptions, 100u);
  EXPECT_GT(result.reused_tokens, 1000u);
  EXPECT_GT(result.n_replaced, 500);
}

TEST(SchedulerRandomTest, LargeBudgets) {
  std::mt19937 seeds(test_seed());
  LoadResult result;
  for (int round = 0; round < 10; ++round) {
    const auto seed = static_cast<unsigned>(seeds());
    run_load({seed, {}, 200 + seed % 300, 200, 5}, result);
  }
  EXPECT_GT(result.n_stopped, 10 * 100);
}

TEST(SchedulerRandomTest, TenThousandSequences) {
  LoadResult result;
  const SchedConfig config{.step_tokens = 256, .max_running = 64, .max_waiting = 500};
  run_load({test_seed(), config, 60, 10'000, 1000}, result);
  EXPECT_GT(result.n_stopped, 8'000);
}

TEST(SchedulerRandomTest, DISABLED_AMillionSteps) {
  std::mt19937 seeds(test_seed());
  LoadResult result;
  while (result.n_steps < 1'000'000 && !testing::Test::HasFailure()) run_load(small_load(seeds), result);
  EXPECT_GT(result.preemptions, 1000u);
}

}  // namespace
}  // namespace pagoda::sched
