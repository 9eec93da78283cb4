#include "serve/diagnosing.h"

#include <gmock/gmock.h>

namespace pagoda::serve {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSecondUs = 1'000'000;

engine::StepRecord step_at(int64_t us, int32_t prefill_rows = 0) {
  engine::StepRecord step;
  step.begin_us = us;
  step.plan_us = 100;
  step.forward_us = 8000;
  step.attention_us = 2000;
  step.sample_us = 200;
  step.prefill_rows = prefill_rows;
  step.decode_rows = 4;
  step.decode_context = 4000;
  step.running = 4;
  step.predicted_us = 8000;
  step.target_us = 100'000;
  for (int i = 0; i < 4; ++i) step.tokens.gaps.add(8300);
  return step;
}

engine::RequestRecord request_at(int64_t us) {
  engine::RequestRecord record;
  record.arrival_us = us - 500'000;
  record.queued_us = us - 490'000;
  record.started_us = us - 450'000;
  record.first_token_us = us - 400'000;
  record.finished_us = us;
  record.prompt_tokens = 100;
  record.cached_tokens = 30;
  record.completion_tokens = 50;
  record.miss = pagoda::kv::MissReason::kEvicted;
  return record;
}

TEST(Diagnosing, SumsTheLastMinute) {
  Diagnosing diagnosing({.n_threads = 2, .usable_cores = 2, .weight_bytes = 1000, .kv_bytes_per_token = 10});
  const int64_t begin_us = 1000 * kSecondUs;
  for (int64_t second = 0; second < 90; ++second) {
    for (int i = 0; i < 100; ++i)
      diagnosing.on_step(step_at(begin_us + second * kSecondUs + i * 10'000, i == 0 ? 50 : 0));
    diagnosing.on_request(request_at(begin_us + second * kSecondUs));
  }
  kv::Account account;
  account.index.emplace();
  account.index->held_bytes = 77;
  const tools::Window w =
      diagnosing.window(begin_us + 90 * kSecondUs - 1, {.kv_budget_bytes = 500, .kv_live_bytes = 100}, account);
  EXPECT_NEAR(w.seconds, 60, 0.01);
  EXPECT_EQ(w.n_steps, 6000);
  EXPECT_EQ(w.n_decode_steps, 6000 - 60);
  EXPECT_EQ(w.prefill_rows, 60 * 50);
  EXPECT_EQ(w.forward_us, 6000 * 8000);
  EXPECT_EQ(w.decode_context, (6000 - 60) * 4000);
  EXPECT_EQ(w.n_requests, 60);
  EXPECT_EQ(w.cached_tokens, 60 * 30);
  EXPECT_EQ(w.evicted_misses, 60);
  EXPECT_EQ(w.queue_us, 60 * 40'000);
  EXPECT_EQ(w.prefill_us, 60 * 50'000);
  EXPECT_EQ(w.ttft_p50_us, 100'000);
  EXPECT_EQ(w.gap_p50_us, 10'000);
  EXPECT_EQ(w.kv_held_bytes, 77u);
  EXPECT_EQ(w.kv_budget_bytes, 500u);
  EXPECT_EQ(w.n_held_up_steps, 0);
}

TEST(Diagnosing, StepsThatWereHeldUpAndLateAreCounted) {
  Diagnosing diagnosing({});
  engine::StepRecord step = step_at(kSecondUs);
  step.forward_us = 120'000;
  diagnosing.on_step(step);
  const tools::Window w = diagnosing.window(2 * kSecondUs, {}, {});
  EXPECT_EQ(w.n_held_up_steps, 1);
  EXPECT_EQ(w.n_late_steps, 1);
  EXPECT_NEAR(w.seconds, 1, 1e-6);
}

TEST(Diagnosing, NothingYet) {
  const Diagnosing diagnosing({});
  const tools::Window w = diagnosing.window(5 * kSecondUs, {}, {});
  EXPECT_EQ(w.n_steps, 0);
  EXPECT_THAT(diagnosis_json(w, tools::diagnose(w)), HasSubstr(R"("bound":"clients")"));
}

TEST(Diagnosing, JsonAndText) {
  tools::Window w;
  w.seconds = 10;
  w.n_steps = 1000;
  w.forward_us = 8'000'000;
  w.attention_us = 2'000'000;
  w.n_decode_steps = 1000;
  w.decode_forward_us = 8'000'000;
  w.decode_step_rows = w.decode_rows = 4000;
  const std::string json = diagnosis_json(w, tools::diagnose(w));
  EXPECT_THAT(json, HasSubstr(R"("time":{"weights":0.6,"attention":0.2,"sampling":0.0,"scheduling":0.0,"idle":0.2)"));
  const auto text = diagnosis_text(json);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("bound by memory_bandwidth: "));
  EXPECT_THAT(*text, HasSubstr("60 % weights, 20 % attention"));
  EXPECT_THAT(*text, HasSubstr("  try: "));
  for (const char* other :
       {"", "{}", "[]", R"({"object":"diagnosis"})", R"({"object":"diagnosis","summary":3})", R"({"object":5})"})
    EXPECT_FALSE(diagnosis_text(other)) << other;
}

}  // namespace
}  // namespace pagoda::serve
