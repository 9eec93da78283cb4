// Latency, fairness, priorities and deadlines under load: fake clock and machine, no model.
#include <gtest/gtest.h>

#include <vector>

#include "sched/scheduler.h"
#include "sched/test_machine.h"

namespace pagoda::sched {
namespace {

constexpr int64_t kTargetUs = 100'000;

SchedConfig with_target() { return {.step_tokens = 256, .quiet_factor = 2, .target_us = kTargetUs}; }

Share share_of(uint32_t tenant, int32_t weight = 1, int32_t priority = 0) {
  return {.tenant = TenantId(tenant), .weight = weight, .priority = priority};
}

// One short request after the other, so that steps of all kinds have been seen.
void warm_up(LoadWorld& w) {
  for (const int n_prompt : {600, 30, 300}) {
    w.submit(n_prompt, 30);
    w.run_all();
  }
}

TEST(SchedulerLoadTest, ALongPromptStallsNoStream) {
  LoadWorld w(with_target());
  warm_up(w);
  const SeqId lone = w.submit(7000, 1);
  w.run_all();
  std::vector<SeqId> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(w.submit(100, 3000));
  for (int i = 0; i < 50; ++i) w.step();
  const SeqId prompt = w.submit(7000, 1);
  while (!w.has_ended(prompt)) ASSERT_TRUE(w.step());
  std::vector<int64_t> gaps_us;
  for (const SeqId stream : streams) {
    const auto& own = w.clients[stream].gaps_us;
    gaps_us.insert(gaps_us.end(), own.begin(), own.end());
  }
  EXPECT_LT(percentile(gaps_us, 0.99), kTargetUs * 12 / 10);
  EXPECT_LT(percentile(gaps_us, 1), kTargetUs * 15 / 10);
  EXPECT_LT(static_cast<double>(w.ttft_us(prompt)), 1.3 * static_cast<double>(w.ttft_us(lone)));
}

TEST(SchedulerLoadTest, AShortPromptDoesNotWaitForALongOne) {
  LoadWorld w(with_target());
  warm_up(w);
  const SeqId long_one = w.submit(7000, 1);
  for (int i = 0; i < 3; ++i) w.step();
  std::vector<int64_t> ttfts_us;
  for (int i = 0; i < 3; ++i) {
    const SeqId short_one = w.submit(100, 5);
    while (!w.has_ended(short_one)) ASSERT_TRUE(w.step());
    ttfts_us.push_back(w.ttft_us(short_one));
  }
  EXPECT_FALSE(w.has_ended(long_one));
  EXPECT_LT(percentile(ttfts_us, 1), 2 * 4 * kTargetUs);  // the quiet step that runs, and its own
  w.run_all();
}

// However many short ones come, the long one goes on.
TEST(SchedulerLoadTest, ALongPromptMakesSteadyProgress) {
  LoadWorld w(with_target());
  warm_up(w);
  const int64_t begin_us = w.clock.now_us();
  const SeqId long_one = w.submit(4000, 1);
  while (!w.has_ended(long_one)) {
    while (w.scheduler.stats().waiting < 4) w.submit(200, 10);
    ASSERT_TRUE(w.step());
  }
  const double alone_us = w.machine.prefill_us * 4000;
  EXPECT_LT(static_cast<double>(w.clock.now_us() - begin_us), 8 * alone_us);
  w.run_all();
}

// Those in line that may not start yet leave the budget to those that run.
TEST(SchedulerLoadTest, ALongPromptHasWhatTheWaitingCannotUse) {
  SchedConfig config = with_target();
  config.max_running = 3;
  LoadWorld w(config);
  warm_up(w);
  w.submit(20, 2000);
  w.submit(20, 2000);
  const SeqId prompt = w.submit(5000, 1);
  for (int i = 0; i < 50; ++i) w.submit(20, 5);
  const int64_t begin_us = w.clock.now_us();
  while (!w.has_ended(prompt)) ASSERT_TRUE(w.step());
  EXPECT_LT(static_cast<double>(w.clock.now_us() - begin_us), 1.5 * w.machine.prefill_us * 5000);
  w.run_all();
}

TEST(SchedulerLoadTest, RunningRowsAreCappedByTheTarget) {
  LoadWorld w(with_target());
  warm_up(w);
  for (int i = 0; i < 250; ++i) w.submit(20, 200);
  uint64_t most_running = 0;
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(w.step());
    most_running = std::max(most_running, w.scheduler.stats().running);
  }
  EXPECT_GT(most_running, 25u);  // 2.5 ms + 0.9 ms a row, and context: 40 ms
  EXPECT_LT(most_running, 65u);
  w.run_all();
  std::vector<int64_t> gaps_us;
  for (const auto& [id, client] : w.clients)
    gaps_us.insert(gaps_us.end(), client.gaps_us.begin(), client.gaps_us.end());
  EXPECT_LT(percentile(gaps_us, 0.99), kTargetUs * 12 / 10);
}

// On a machine that is too slow for the target even a lone stream is late. It is counted, and prompts go on all the same.
TEST(SchedulerLoadTest, ATargetOutOfReachIsMissedAndStarvesNobody) {
  LoadWorld w(with_target());
  w.machine.slow_down(100);
  warm_up(w);
  const uint64_t late = w.scheduler.stats().late_steps;
  w.submit(50, 100);
  while (w.scheduler.stats().running == 0) w.step();
  const SeqId prompt = w.submit(200, 1);
  const int64_t begin_us = w.clock.now_us();
  while (!w.has_ended(prompt)) ASSERT_TRUE(w.step());
  EXPECT_LT(static_cast<double>(w.clock.now_us() - begin_us), 20 * w.machine.prefill_us * 200);
  EXPECT_GT(w.scheduler.stats().late_steps, late);
  w.run_all();
}

TEST(SchedulerLoadTest, AnAutomaticTargetFollowsASlowMachine) {
  LoadWorld w({.step_tokens = 256, .target_us = kAutoTarget});
  w.machine.slow_down(60);
  warm_up(w);
  EXPECT_GT(w.scheduler.stats().target_us, static_cast<int64_t>(3.2 * (w.machine.step_us + w.machine.decode_us)));
  LoadWorld fast({.step_tokens = 256, .target_us = kAutoTarget});
  warm_up(fast);
  EXPECT_EQ(fast.scheduler.stats().target_us, 100'000);
}

// One tenant floods, the other sends one request at a time.
TEST(SchedulerLoadTest, AFloodDelaysNobodyElse) {
  LoadWorld w(with_target());
  warm_up(w);
  const auto ask = [&] {
    const SeqId id = w.submit(100, 20, share_of(2));
    while (!w.has_ended(id)) EXPECT_TRUE(w.step());
    return w.ttft_us(id);
  };
  std::vector<int64_t> lone_us, flooded_us;
  for (int i = 0; i < 40; ++i) lone_us.push_back(ask());
  for (int i = 0; i < 200; ++i) w.submit(40, 300, share_of(1));
  for (int i = 0; i < 5; ++i) w.step();
  for (int i = 0; i < 15; ++i) flooded_us.push_back(ask());
  EXPECT_GT(w.scheduler.stats().waiting, 0u);
  EXPECT_LE(percentile(flooded_us, 0.95), percentile(lone_us, 0.95) + 2 * kTargetUs);
  w.run_all();
}

// The same where the flood has all the KV memory.
TEST(SchedulerLoadTest, AFloodOfMemoryDelaysNobodyElse) {
  LoadWorld w(with_target(), 400);
  warm_up(w);
  for (int i = 0; i < 100; ++i) w.submit(700, 300, share_of(1));
  for (int i = 0; i < 50; ++i) w.step();
  std::vector<int64_t> ttfts_us;
  for (int i = 0; i < 20; ++i) {
    const SeqId id = w.submit(100, 20, share_of(2));
    while (!w.has_ended(id)) ASSERT_TRUE(w.step());
    ttfts_us.push_back(w.ttft_us(id));
  }
  EXPECT_LE(percentile(ttfts_us, 0.95), 4 * kTargetUs);
  ASSERT_TRUE(w.scheduler.check_integrity());
  w.run_all();
}

// Both want more than there is.
TEST(SchedulerLoadTest, SharesFollowTheWeights) {
  for (const int32_t weight : {1, 3}) {
    LoadWorld w(with_target());
    warm_up(w);
    const auto keep_asking = [&](const Share& share) {
      int n = 0;
      for (const auto& [id, client] : w.clients) {
        n += client.share.tenant == share.tenant && client.reason == FinishReason::kNone;
      }
      for (; n < 150; ++n) w.submit(static_cast<int>(20 + w.machine.random() % 400), 50, share);
    };
    for (int i = 0; i < 3000; ++i) {
      if (i == 500) w.served.clear();
      if (i % 5 == 0) {
        keep_asking(share_of(1, weight));
        keep_asking(share_of(2));
        std::erase_if(w.clients, [](const auto& entry) { return entry.second.reason != FinishReason::kNone; });
      }
      ASSERT_TRUE(w.step());
    }
    const double ratio = static_cast<double>(w.served[TenantId(1)]) / static_cast<double>(w.served[TenantId(2)]);
    EXPECT_NEAR(ratio / weight, 1, 0.1) << weight;
  }
}

// A better priority takes the worst one's place at once; who has waited for long goes first even so.
TEST(SchedulerLoadTest, PrioritiesAndAge) {
  SchedConfig config = with_target();
  config.max_running = 4;
  LoadWorld w(config);
  warm_up(w);
  for (int i = 0; i < 8; ++i) w.submit(50, 400, share_of(1, 1, 5));
  for (int i = 0; i < 5; ++i) w.step();
  const SeqId urgent = w.submit(50, 5, share_of(2, 1, 0));
  while (!w.has_ended(urgent)) ASSERT_TRUE(w.step());
  EXPECT_LT(w.ttft_us(urgent), 2 * kTargetUs);
  EXPECT_EQ(w.ended.back(), urgent);
  w.run_all();
  // Urgent ones that never end, and one that is not.
  const SeqId patient = w.submit(50, 5, share_of(1, 1, 5));
  const int64_t begin_us = w.clock.now_us();
  while (!w.has_ended(patient)) {
    while (w.scheduler.stats().waiting < 6) w.submit(50, 400, share_of(2, 1, 0));
    ASSERT_TRUE(w.step());
    ASSERT_LT(w.clock.now_us() - begin_us, 8 * kAgeUs);
  }
  EXPECT_GT(w.clock.now_us() - begin_us, 3 * kAgeUs);
  w.run_all();
}

// Among one tenant's own the request's priority decides.
TEST(SchedulerLoadTest, ARequestsPriorityIsAmongItsTenantsOwn) {
  SchedConfig config = with_target();
  config.max_running = 1;
  for (const uint32_t tenant : {0u, 1u}) {
    LoadWorld w(config);
    warm_up(w);
    w.ended.clear();
    const SeqId running = w.submit(10, 50, share_of(tenant));
    w.step();
    const SeqId late = w.submit(10, 2, share_of(tenant), 3);
    const SeqId plain = w.submit(10, 2, share_of(tenant));
    const SeqId early = w.submit(10, 2, share_of(tenant), -3);
    w.run_all();
    EXPECT_EQ(w.ended, (std::vector{running, early, plain, late}));
  }
}

TEST(SchedulerLoadTest, DeadlinesEndWhoWaitsAndWhoRuns) {
  SchedConfig config = with_target();
  config.max_running = 1;
  LoadWorld w(config);
  const SeqId runs = w.submit(10, 1000, {}, 0, 500'000);
  const SeqId waits = w.submit(10, 5, {}, 0, 300'000);
  const SeqId in_time = w.submit(10, 5, {}, 0, 900'000);
  EXPECT_EQ(w.scheduler.wake_us(), 300'000);
  w.run_all();
  EXPECT_EQ(w.ended, (std::vector{waits, runs, in_time}));
  EXPECT_EQ(w.clients[waits].reason, FinishReason::kTimeout);
  EXPECT_EQ(w.clients[waits].first_us, -1);
  EXPECT_EQ(w.clients[runs].reason, FinishReason::kTimeout);
  EXPECT_GT(w.clients[runs].gaps_us.size(), 100u);
  EXPECT_EQ(w.clients[in_time].reason, FinishReason::kStop);
  EXPECT_EQ(w.scheduler.stats().timeouts, 2u);
  EXPECT_EQ(w.scheduler.wake_us(), std::nullopt);
}

TEST(SchedulerLoadTest, AHundredThousandRequests) {
  SchedConfig config = with_target();
  config.max_waiting = 400;
  LoadWorld w(config, 600);
  const auto draw = [&](int n) { return static_cast<int>(w.machine.random() % static_cast<unsigned>(n)); };
  constexpr int kRequests = 100'000;
  int n_submitted = 0;
  std::map<FinishReason, int> n_ended;
  for (int64_t step = 0; n_submitted < kRequests || !w.scheduler.idle(); ++step) {
    while (n_submitted < kRequests && w.scheduler.stats().waiting < 300 && draw(4) != 0) {
      const Share share = share_of(static_cast<uint32_t>(draw(6)), 1 + draw(3), draw(3) - 1);
      const int64_t timeout_us = draw(10) == 0 ? 1 + draw(30'000'000) : 0;
      const int n_prompt = draw(50) == 0 ? 3000 + draw(3000) : 1 + draw(40);
      w.submit(n_prompt, 1 + draw(6), share, draw(5) - 2, timeout_us);
      ++n_submitted;
      if (draw(50) == 0) w.scheduler.cancel(SeqId(static_cast<uint64_t>(n_submitted - draw(200))));
    }
    ASSERT_TRUE(w.step() || w.scheduler.idle() || n_submitted < kRequests);
    ASSERT_FALSE(testing::Test::HasFailure());
    if (step % 5000 == 0) {
      ASSERT_TRUE(w.scheduler.check_integrity());
    }
  }
  w.run_all();
  for (const auto& [id, client] : w.clients) ++n_ended[client.reason];
  EXPECT_GT(n_ended[FinishReason::kStop], kRequests * 8 / 10);
  EXPECT_GT(n_ended[FinishReason::kTimeout], 0);
  EXPECT_EQ(n_ended[FinishReason::kLength], 0);
  EXPECT_EQ(w.scheduler.stats().finished, static_cast<uint64_t>(kRequests));
}

}  // namespace
}  // namespace pagoda::sched
