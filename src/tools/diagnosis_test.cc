#include "tools/diagnosis.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace pagoda::tools {
namespace {

using testing::HasSubstr;

// A minute of 4 streams on a busy server: 7,500 steps of 8 ms, no prompts to speak of.
Window streams() {
  Window w;
  w.seconds = 60;
  w.n_steps = w.n_decode_steps = 7500;
  w.plan_us = 7500 * 100;
  w.forward_us = w.decode_forward_us = 7500 * 7600;
  w.attention_us = 7500 * 1500;
  w.sample_us = 7500 * 200;
  w.decode_rows = w.decode_step_rows = w.running_steps = 30'000;
  w.decode_context = 30'000 * 1000;
  w.target_us = 100'000;
  w.n_requests = 60;
  w.prompt_tokens = 60 * 200;
  w.completion_tokens = 60 * 500;
  w.prefill_us = 60 * 100'000;
  w.decode_us = 60 * 4'000'000;
  w.ttft_p50_us = 110'000;
  w.gap_p50_us = 8000;
  w.gap_p99_us = 12'000;
  w.kv_budget_bytes = uint64_t{1} << 30;
  w.kv_live_bytes = uint64_t{100} << 20;
  w.weight_bytes = uint64_t{92} << 20;
  w.kv_bytes_per_token = 11'880;
  w.n_threads = 2;
  w.usable_cores = 2;
  w.read_bytes_per_s = 30e9;
  return w;
}

// Prompts all the time: steps of 250 rows, 100 ms each.
Window prompts() {
  Window w = streams();
  w.n_steps = 600;
  w.n_decode_steps = 100;
  w.plan_us = 600 * 200;
  w.forward_us = 500 * 100'000 + 100 * 8000;
  w.decode_forward_us = 100 * 8000;
  w.decode_step_rows = 400;
  w.decode_context = 400 * 1000;
  w.sample_us = 600 * 200;
  w.prefill_rows = 500 * 250;
  w.decode_rows = 2400;
  w.prefill_us = 60 * 2'000'000;
  w.decode_us = 60 * 1'000'000;
  return w;
}

std::vector<std::string_view> kinds(const Window& w) {
  std::vector<std::string_view> out;
  for (const Finding& found : diagnose(w).findings) out.push_back(found.kind);
  return out;
}

const Finding& first(const Diagnosis& d) { return d.findings.front(); }

TEST(Diagnosis, DecodeIsBoundByBandwidthAndSaysHowFar) {
  const Diagnosis d = diagnose(streams());
  EXPECT_EQ(d.bound, BoundBy::kBandwidth);
  EXPECT_EQ(first(d).kind, "bandwidth");
  EXPECT_THAT(first(d).evidence,
              HasSubstr("4.0 rows a step read 92 MiB of weights and 45 MiB of K and V: 18.9 GB/s of the 30.0"));
  EXPECT_THAT(d.summary, HasSubstr("bound by memory_bandwidth: "));
  EXPECT_EQ(d.findings.size(), 1u);
}

TEST(Diagnosis, PromptsAreBoundByArithmetic) {
  EXPECT_EQ(kinds(prompts()), std::vector<std::string_view>{"compute"});
  EXPECT_EQ(diagnose(prompts()).bound, BoundBy::kCompute);
}

TEST(Diagnosis, ManyRowsAreBoundByArithmeticToo) {
  Window w = streams();
  w.decode_rows = w.decode_step_rows = 7500 * 32;
  EXPECT_EQ(diagnose(w).bound, BoundBy::kCompute);
}

TEST(Diagnosis, AnIdleServerWaitsForItsClients) {
  Window w = streams();
  w.seconds = 600;
  EXPECT_EQ(diagnose(w).bound, BoundBy::kClients);
  EXPECT_THAT(first(diagnose(w)).evidence, HasSubstr("busy 10 % of the last 600 s"));
  const Diagnosis nothing = diagnose({});
  EXPECT_EQ(nothing.bound, BoundBy::kClients);
  EXPECT_EQ(nothing.findings.size(), 1u);
}

TEST(Diagnosis, PreemptionsAreCapacity) {
  Window w = prompts();
  w.n_preemptions = 90;
  w.waiting_steps = 600 * 5;
  w.kv_live_bytes = w.kv_budget_bytes - 1;
  w.recomputed_tokens = w.prefill_rows / 4;
  const Diagnosis d = diagnose(w);
  EXPECT_EQ(d.bound, BoundBy::kCapacity);
  EXPECT_EQ(first(d).kind, "kv_capacity");
  EXPECT_THAT(first(d).evidence,
              HasSubstr("90 preemptions in 60 s, 25 % of the prompt rows computed again, 5.0 sequences waiting"));
  EXPECT_THAT(first(d).advice, HasSubstr("--kv-memory"));
}

TEST(Diagnosis, LongPromptsThatStretchGaps) {
  Window w = prompts();
  w.gap_p99_us = 600'000;
  w.n_late_steps = 400;
  const Diagnosis d = diagnose(w);
  EXPECT_EQ(first(d).kind, "long_prompts");
  EXPECT_EQ(d.bound, BoundBy::kScheduling);
  EXPECT_THAT(first(d).advice, HasSubstr("--target-itl 300"));
}

TEST(Diagnosis, ShortRequestsPayForOverhead) {
  Window w = streams();
  w.plan_us = w.sample_us = w.forward_us / 2;
  w.seconds = 100;
  w.n_requests = 5000;
  const Diagnosis d = diagnose(w);
  EXPECT_EQ(first(d).kind, "overhead");
  EXPECT_THAT(first(d).evidence, HasSubstr("50 % of the step time"));
}

TEST(Diagnosis, SessionsThatHoldTheMemory) {
  Window w = streams();
  w.kv_held_bytes = w.kv_budget_bytes / 10 * 7;
  w.evicted_misses = 20;
  const Diagnosis d = diagnose(w);
  EXPECT_EQ(first(d).kind, "sessions");
  EXPECT_THAT(first(d).advice, HasSubstr("--session-ttl"));
}

TEST(Diagnosis, ColdCaches) {
  Window w = prompts();
  w.evicted_misses = 55;
  w.cached_tokens = 60 * 20;
  w.hit_rate = 0.1;
  w.hit_rate_at_twice = 0.7;
  const Diagnosis d = diagnose(w);
  EXPECT_EQ(first(d).kind, "cold_cache");
  EXPECT_THAT(first(d).advice, HasSubstr("--kv-memory 2048M would raise the hits from 10 % to 70 %"));
}

TEST(Diagnosis, ThreadsWithoutCores) {
  Window w = streams();
  w.n_threads = 8;
  EXPECT_EQ(first(diagnose(w)).kind, "threads");
  EXPECT_EQ(first(diagnose(w)).advice, "--threads 2");
}

TEST(Diagnosis, AProcessorThatOthersUse) {
  Window w = streams();
  w.n_held_up_steps = 1500;
  EXPECT_EQ(first(diagnose(w)).kind, "noisy_cpu");
  EXPECT_THAT(first(diagnose(w)).evidence, HasSubstr("20 % of 7500 steps"));
}

TEST(Diagnosis, TiersThatAreWaitedFor) {
  Window w = prompts();
  w.load_waited_us = w.prefill_us;
  EXPECT_EQ(first(diagnose(w)).kind, "tier_io");
}

TEST(Diagnosis, WeightiestFirst) {
  Window w = prompts();
  w.n_preemptions = 500;
  w.waiting_steps = 6000;
  w.n_held_up_steps = 20;
  const Diagnosis d = diagnose(w);
  EXPECT_EQ(kinds(w), (std::vector<std::string_view>{"kv_capacity", "compute", "noisy_cpu"}));
  EXPECT_TRUE(std::ranges::is_sorted(d.findings, std::ranges::greater(), &Finding::weight));
}

}  // namespace
}  // namespace pagoda::tools
