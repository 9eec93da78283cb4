// The scheduler over caches that find prefixes: who waits, who starts first, and where a sequence begins.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "sched/test_world.h"

namespace pagoda::sched {
namespace {

SequenceSpec spec_of(uint64_t id, std::vector<TokenId> prompt) {
  return {.id = seq(id), .model = kModel, .prompt = std::move(prompt)};
}

TEST(SchedulerPrefixTest, StartsBehindTheTokensFound) {
  World w(64, {.step_tokens = 64}, Prefixes::kOn);
  ASSERT_TRUE(w.submit(spec_of(1, prompt_of(200, 1)), 30));
  w.run_all();
  ASSERT_TRUE(w.submit(spec_of(2, prompt_of(200, 1)), 5));
  ASSERT_TRUE(w.step());
  ASSERT_EQ(w.plan.rows.size(), 1u);
  EXPECT_EQ(w.plan.rows[0].first_position, 199);
  EXPECT_EQ(w.plan.rows[0].n_tokens, 1);
  EXPECT_EQ(w.plan.rows[0].sampling, Sampling::kLastRow);
  EXPECT_EQ(w.scheduler.find(seq(2))->cache_use().reused_tokens, 199);
  EXPECT_EQ(w.scheduler.find(seq(2))->cache_use().n_misses, 0u);
  w.run_all();
  w.check_done();
  EXPECT_EQ(w.scheduler.stats().reused_tokens, 199u);
}

TEST(SchedulerPrefixTest, TheLastRowsOfOneThatEndsAreKept) {
  World w(64, {.step_tokens = 128}, Prefixes::kOn);
  ASSERT_TRUE(w.submit(spec_of(1, prompt_of(100, 1)), 5));
  w.cancel_while_running = seq(1);
  ASSERT_TRUE(w.step());
  ASSERT_TRUE(w.submit(spec_of(2, prompt_of(100, 1)), 5));
  w.cancel_while_running = {};
  ASSERT_TRUE(w.step());
  EXPECT_EQ(w.plan.rows[0].first_position, 96);
  w.run_all();
  w.check_done();
}

TEST(SchedulerPrefixTest, AllPromptLogitsMeanAllRows) {
  World w(64, {.step_tokens = 64}, Prefixes::kOn);
  ASSERT_TRUE(w.submit(spec_of(1, prompt_of(100, 1)), 2));
  w.run_all();
  SequenceSpec spec = spec_of(2, prompt_of(100, 1));
  spec.prompt_logits = PromptLogits::kAll;
  ASSERT_TRUE(w.submit(std::move(spec), 2));
  int n_logits = 0;
  while (w.step()) {
    for (const SeqRows& rows : w.plan.rows) n_logits += rows.n_logits;
  }
  w.check_done();
  EXPECT_EQ(n_logits, 101);
}

// Sixteen alike at once: one computes, the others wait for it.
TEST(SchedulerPrefixTest, IdenticalPromptsAreComputedOnce) {
  World w(200, {.step_tokens = 64}, Prefixes::kOn);
  for (uint64_t id = 1; id <= 16; ++id) {
    std::vector<TokenId> prompt = prompt_of(320, 1);
    prompt.push_back(TokenId(static_cast<int32_t>(id)));
    ASSERT_TRUE(w.submit(spec_of(id, std::move(prompt)), 3));
  }
  w.run_all();
  w.check_done();
  EXPECT_EQ(w.scheduler.stats().computed_tokens, 321u + 15 + 16 * 2);
  EXPECT_EQ(w.scheduler.stats().preemptions, 0u);
}

TEST(SchedulerPrefixTest, WhenTheFirstIsCancelledTheNextComputes) {
  World w(200, {.step_tokens = 32}, Prefixes::kOn);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(w.submit(spec_of(id, prompt_of(320, 1)), 3));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(w.step());
  w.scheduler.cancel(seq(1));
  w.run_all();
  w.check_done();
  EXPECT_EQ(w.tokens[seq(3)].size(), 3u);
  EXPECT_LT(w.scheduler.stats().computed_tokens, 320u + 32 + 10);
  EXPECT_LT(w.clock.now_us(), 1'000'000);  // nobody waited for a deadline
}

TEST(SchedulerPrefixTest, APreemptedSequenceFindsItsOwnBlocks) {
  World w(8, {.step_tokens = 256}, Prefixes::kOn);
  for (int id = 1; id <= 4; ++id) ASSERT_TRUE(w.submit(id, 20, 200));
  while (w.step()) ASSERT_SOUND(w.scheduler.check_integrity());
  w.check_done();
  EXPECT_GT(w.scheduler.stats().preemptions, 0u);
  EXPECT_EQ(w.scheduler.stats().reused_tokens, 0u);  // that it found them is not a saving
}

TEST(SchedulerPrefixTest, SaysWhatWasComputedAgain) {
  int32_t n_again = 0;
  for (const Prefixes prefixes : {Prefixes::kOff, Prefixes::kOn}) {
    World w(8, {.step_tokens = 40}, prefixes);
    for (int id = 1; id <= 5; ++id) ASSERT_TRUE(w.submit(id, 40, 150));
    std::map<SeqId, int32_t> seen, again;
    while (w.step()) {
      for (const SeqRows& planned : w.plan.rows) {
        const int32_t end = planned.first_position + planned.n_tokens;
        int32_t& n_seen = seen[planned.seq];
        again[planned.seq] += std::max(0, std::min(n_seen, end) - planned.first_position);
        n_seen = std::max(n_seen, end);
        const Sequence* found = w.scheduler.find(planned.seq);
        if (found == nullptr) continue;
        ASSERT_EQ(found->cache_use().recomputed_tokens, again[planned.seq]);
      }
    }
    w.check_done();
    for (const auto& [id, n] : again) n_again += n;
  }
  EXPECT_GT(n_again, 0);
}

TEST(SchedulerPrefixTest, SaysHowLongItWaitedForOthersAndWhatItMissed) {
  World w(64, {.step_tokens = 64, .chunk_tokens = 32}, Prefixes::kOn);
  ASSERT_TRUE(w.submit(spec_of(1, prompt_of(100, 1)), 50));
  ASSERT_TRUE(w.step());
  std::vector<TokenId> other = prompt_of(100, 1);
  other[80] = TokenId(77);
  ASSERT_TRUE(w.submit(spec_of(2, other), 50));
  while (w.tokens[seq(2)].empty()) ASSERT_TRUE(w.step());
  const CacheUse& use = w.scheduler.find(seq(2))->cache_use();
  EXPECT_EQ(use.reused_tokens, 64);
  EXPECT_EQ(use.waited_us, 1000);  // one step
  ASSERT_EQ(use.n_misses, 1u);
  EXPECT_EQ(use.misses[0].position, 64);
  EXPECT_EQ(use.misses[0].reason, kv::MissReason::kCold);
  EXPECT_EQ(use.misses[0].divergence.position, 64);  // the block with the difference was not there yet
  EXPECT_EQ(w.scheduler.find(seq(1))->cache_use().waited_us, 0);
  std::vector<const kv::KvLease*> leases;
  w.scheduler.list_leases(leases);
  EXPECT_EQ(leases.size(), 2u);
  w.run_all();
  w.check_done();
}

// Hits lie where they lie; one that fits alone does so from the beginning.
TEST(SchedulerPrefixTest, StartsOverWhereScatteredBlocksLeaveNoRoom) {
  for (const int32_t at : {100, 210}) {  // in its prefill, in its answer
    World w(20, {.step_tokens = 64}, Prefixes::kOn);
    ASSERT_TRUE(w.submit(spec_of(1, prompt_of(100, 1)), 30));
    w.run_all();
    w.caches[0]->scattered_at[prompt_of(1, 1)[0].value] = at;
    ASSERT_TRUE(w.submit(spec_of(2, prompt_of(200, 1)), 30));
    w.run_all();
    w.check_done();
    EXPECT_EQ(w.reasons[seq(2)], FinishReason::kStop);
    EXPECT_EQ(w.scheduler.stats().preemptions, 0u);
  }
}

TEST(SchedulerPrefixTest, TheLongestHitStartsFirst) {
  World w(200, {.step_tokens = 128, .chunk_tokens = 64, .max_running = 1}, Prefixes::kOn);
  ASSERT_TRUE(w.submit(spec_of(1, prompt_of(200, 1)), 2));
  w.run_all();
  ASSERT_TRUE(w.submit(spec_of(2, prompt_of(200, 2)), 2));
  ASSERT_TRUE(w.submit(spec_of(3, prompt_of(100, 3)), 2));
  ASSERT_TRUE(w.submit(spec_of(4, prompt_of(210, 1)), 2));
  std::vector<uint64_t> order;
  while (w.step()) {
    if (order.empty() || order.back() != w.plan.rows[0].seq.value) order.push_back(w.plan.rows[0].seq.value);
  }
  w.check_done();
  EXPECT_EQ(order, (std::vector<uint64_t>{4, 2, 3}));
}

TEST(SchedulerPrefixTest, NobodyIsOvertakenForLongerThanTheBound) {
  World w(200, {.step_tokens = 128, .chunk_tokens = 64, .max_running = 1, .overtake_us = 20'000}, Prefixes::kOn);
  ASSERT_TRUE(w.submit(spec_of(1, prompt_of(200, 1)), 2));
  w.run_all();
  ASSERT_TRUE(w.submit(spec_of(2, prompt_of(200, 2)), 2));
  const int64_t begin_us = w.clock.now_us();
  uint64_t next = 3;
  while (w.tokens[seq(2)].empty()) {
    ASSERT_TRUE(w.submit(spec_of(next, prompt_of(200 + static_cast<int>(next) % 7, 1)), 2));
    ++next;
    ASSERT_TRUE(w.step());
    ASSERT_LT(w.clock.now_us() - begin_us, 40'000);
  }
  EXPECT_GT(w.clock.now_us() - begin_us, 20'000);
  w.run_all();
  w.check_done();
}

TEST(StartOrderTest, HitsThenLineThenAge) {
  std::vector<std::unique_ptr<Sequence>> seqs;
  std::deque<Sequence*> line;
  const std::vector<int32_t> hits{0, 64, 32, 64, 96}, queued_us{100, 50, 90, 95, 99};
  for (size_t i = 0; i < hits.size(); ++i) {
    seqs.push_back(std::make_unique<Sequence>(spec_of(i, prompt_of(4, 1)), i, queued_us[i]));
    seqs.back()->hit_tokens = hits[i];
    line.push_back(seqs.back().get());
  }
  const auto ids = [&](int64_t bound, int64_t now) {
    StartOrder order(bound, kAgeUs);
    std::string out;
    for (const Sequence* s : order.of(line, now, FairShares())) out += std::to_string(s->id().value);
    return out;
  };
  EXPECT_EQ(ids(1000, 200), "41320");
  EXPECT_EQ(ids(110, 200), "12430");
  EXPECT_EQ(ids(0, 200), "01234");
}

}  // namespace
}  // namespace pagoda::sched
