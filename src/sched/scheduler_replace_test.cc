// Scheduler::replace_tokens: whatever state the sequence is in, it goes on as one that began with the new list.
#include <gtest/gtest.h>

#include "sched/scheduler.h"
#include "sched/test_world.h"

namespace pagoda::sched {
namespace {

std::vector<TokenId> without_middle(std::span<const TokenId> tokens, size_t n_keep, size_t n_dropped) {
  std::vector<TokenId> list(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n_keep));
  list.insert(list.end(), tokens.begin() + static_cast<ptrdiff_t>(n_keep + n_dropped), tokens.end());
  return list;
}

class SchedulerReplaceTest : public testing::TestWithParam<Prefixes> {
 protected:
  SchedConfig config_{.step_tokens = 64, .chunk_tokens = 32};
};
INSTANTIATE_TEST_SUITE_P(Prefix, SchedulerReplaceTest, testing::Values(Prefixes::kOff, Prefixes::kOn));

// As a context policy does it: the list is known after the step's token is, before the step is committed.
TEST_P(SchedulerReplaceTest, InFlightAgainAndAgain) {
  for (const KvReuse reuse : {KvReuse::kOn, KvReuse::kOff}) {
    config_.kv_reuse = reuse;
    World w(64, config_, GetParam());
    ASSERT_TRUE(w.submit(1, 90, 400));
    ASSERT_TRUE(w.submit(2, 30, 100));
    int n_edits = 0;
    while (true) {
      w.scheduler.next_step(w.plan);
      if (w.plan.empty()) break;
      w.executor.run(w.scheduler, *w.caches[0], w.plan, w.outcomes);
      const Sequence* one = w.scheduler.find(seq(1));
      for (size_t i = 0; one && i < w.plan.rows.size(); ++i) {
        if (w.plan.rows[i].seq != seq(1) || w.plan.rows[i].sampling == Sampling::kNone) continue;
        if (one->n_tokens() + 1 < 128) continue;
        std::vector<TokenId> all(one->tokens().begin(), one->tokens().end());
        all.push_back(w.outcomes[i].token);
        w.replace_while_running[seq(1)] = without_middle(all, 4, 62);
      }
      for (const auto& [id, list] : w.replace_while_running) w.scheduler.replace_tokens(id, list);
      w.commit();
      for (const auto& [id, list] : w.replace_while_running) w.begin_list(id, list);
      n_edits += static_cast<int>(w.replace_while_running.size());
      w.replace_while_running.clear();
      ASSERT_SOUND(w.scheduler.check_integrity());
    }
    w.check_done();
    EXPECT_EQ(n_edits, 6);
    EXPECT_EQ(w.reasons[seq(1)], FinishReason::kStop);
  }
}

TEST_P(SchedulerReplaceTest, WhileItWaits) {
  config_.max_running = 1;
  World w(64, config_, GetParam());
  ASSERT_TRUE(w.submit(1, 10, 20));
  ASSERT_TRUE(w.submit(2, 10, 5));
  ASSERT_TRUE(w.step());
  w.replace(seq(2), prompt_of(70, 7));
  EXPECT_EQ(w.scheduler.find(seq(2))->state(), SeqState::kWaiting);
  EXPECT_EQ(w.scheduler.find(seq(2))->n_prompt(), 70);
  w.run_all();
  w.check_done();
}

TEST_P(SchedulerReplaceTest, InTheMiddleOfAPrefillNoMorePromptLogits) {
  World w(64, config_, GetParam());
  ASSERT_TRUE(w.submit({.id = seq(1), .prompt = prompt_of(100, 1), .prompt_logits = PromptLogits::kAll}, 10));
  ASSERT_TRUE(w.step());
  w.replace(seq(1), prompt_of(80, 2));
  EXPECT_EQ(w.scheduler.find(seq(1))->state(), SeqState::kPrefilling);
  EXPECT_EQ(w.pool.stats().live_blocks, 0u);
  int n_logits = 0;
  while (w.step()) {
    for (const SeqRows& rows : w.plan.rows) n_logits += rows.n_logits;
  }
  EXPECT_EQ(n_logits, 10);
  w.check_done();
}

TEST_P(SchedulerReplaceTest, WhilePreempted) {
  World w(6, {.step_tokens = 256}, GetParam());
  for (int id = 1; id <= 4; ++id) ASSERT_TRUE(w.submit(id, 20, 200));
  while (w.scheduler.find(seq(4))->state() != SeqState::kPreempted) ASSERT_TRUE(w.step());
  w.replace(seq(4), prompt_of(50, 9));
  EXPECT_EQ(w.scheduler.find(seq(4))->state(), SeqState::kPreempted);
  ASSERT_SOUND(w.scheduler.check_integrity());
  w.run_all();
  w.check_done();
}

// What it waited for was for the old list.
TEST_P(SchedulerReplaceTest, WhileSetAsideWithBlocks) {
  World w(64, config_, GetParam());
  w.caches[0]->waits[prompt_of(1, 1)[0].value] = {kv::TicketId(5), 1'000'000, 32};
  ASSERT_TRUE(w.submit(1, 100, 10));
  ASSERT_TRUE(w.step());
  EXPECT_FALSE(w.step());
  ASSERT_TRUE(w.scheduler.find(seq(1))->waiting_on());
  w.replace(seq(1), prompt_of(40, 2));
  EXPECT_FALSE(w.scheduler.find(seq(1))->waiting_on());
  EXPECT_EQ(w.pool.stats().live_blocks, 0u);
  ASSERT_SOUND(w.scheduler.check_integrity());
  w.run_all();
  w.check_done();
  w.scheduler.replace_tokens(seq(1), prompt_of(3, 3));  // gone: ignored
}

TEST_P(SchedulerReplaceTest, AnEndInTheSameStepWins) {
  World w(64, config_, GetParam());
  ASSERT_TRUE(w.submit(1, 10, 10));
  ASSERT_TRUE(w.submit(2, 10, 10));
  w.fails.insert(seq(2));
  w.cancel_while_running = seq(1);
  w.replace_while_running[seq(1)] = prompt_of(5, 8);
  w.replace_while_running[seq(2)] = prompt_of(5, 8);
  ASSERT_TRUE(w.step());
  EXPECT_TRUE(w.scheduler.idle());
  EXPECT_EQ(w.pool.stats().live_blocks, 0u);
}

// The edited list is found again by the next request that begins with it, and finds what others computed.
TEST(SchedulerReplaceHitsTest, EditedListsAreSharedLikePrompts) {
  World w(64, {.step_tokens = 256}, Prefixes::kOn);
  ASSERT_TRUE(w.submit({.id = seq(1), .model = kOther, .prompt = prompt_of(100, 3)}, 2));
  w.run_all();
  ASSERT_TRUE(w.submit({.id = seq(2), .model = kOther, .prompt = prompt_of(100, 4)}, 8));
  ASSERT_TRUE(w.step());
  const uint64_t computed = w.scheduler.stats().computed_tokens;
  w.replace(seq(2), prompt_of(100, 3));
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.scheduler.stats().computed_tokens, computed + 4);  // behind three whole blocks
  w.run_all();
  w.check_done();
}

}  // namespace
}  // namespace pagoda::sched
