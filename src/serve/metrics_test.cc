#include "serve/metrics.h"

#include <gmock/gmock.h>

namespace pagoda::serve {
namespace {

using engine::RequestRecord;
using engine::StepRecord;
using testing::HasSubstr;
using testing::Not;

class MetricsTest : public testing::Test {
 protected:
  static engine::ModelInfo model() {
    engine::ModelInfo info;
    info.name = "tiny";
    info.kv_format = "q8";
    info.kv_block_bytes = 100;
    return info;
  }
  static engine::EngineStats stats() {
    return {.running = 2, .waiting = 3, .steps = 4, .preemptions = 5, .kv_budget_bytes = 1000, .kv_live_bytes = 250};
  }
  static RequestRecord finished(const std::string& tenant = "") {
    return {.id = engine::RequestId(1),
            .tenant = tenant,
            .model = "tiny",
            .arrival_us = 1'000'000,
            .queued_us = 1'001'000,
            .started_us = 1'003'000,
            .first_token_us = 1'020'000,
            .finished_us = 2'020'000,
            .prompt_tokens = 40,
            .cached_tokens = 32,
            .completion_tokens = 11,
            .miss = kv::MissReason::kCold,
            .max_tokens = 11,
            .max_choice_tokens = 11,
            .outcome = RequestRecord::Outcome::kLength};
  }
  std::string scrape(MetricsReading reading = {.engine = stats()}) { return metrics_.render(reading); }

  Metrics metrics_{{model()}, stats(), "1.2.3"};
};

TEST_F(MetricsTest, ShowsTheMomentUnderVllmsNames) {
  const std::string text = scrape();
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:num_requests_running gauge\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_preemptions_total{engine=\"0\",model_name=\"tiny\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("vllm:cache_config_info{block_size=\"32\",cache_dtype=\"q8\",engine=\"0\","
                              "model_name=\"tiny\",num_gpu_blocks=\"10\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:build_info{version=\"1.2.3\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("pagoda:sessions")));  // no account yet
}

TEST_F(MetricsTest, CountersFollowTotalsAndNeverGoBack) {
  MetricsReading reading{.engine = stats()};
  reading.outcomes = {{"done", 7}};
  EXPECT_THAT(scrape(reading), HasSubstr("pagoda:requests_total{outcome=\"done\"} 7\n"));
  reading.outcomes = {{"done", 9}};
  EXPECT_THAT(scrape(reading), HasSubstr("pagoda:requests_total{outcome=\"done\"} 9\n"));
  reading.outcomes = {{"done", 1}};
  EXPECT_THAT(scrape(reading), HasSubstr("pagoda:requests_total{outcome=\"done\"} 9\n"));
}

TEST_F(MetricsTest, StepsBringTokensGapsAndFirstTokens) {
  StepRecord step{.step = 1, .plan_us = 20, .forward_us = 3000, .sample_us = 30, .prefill_rows = 40, .decode_rows = 2};
  step.tokens = {.generated = 3, .prompt = 40, .cached = 32, .restored = 20, .first_token = {}, .gaps = {}};
  step.tokens.first_token.add(15'000);
  step.tokens.gaps.add(4'000);
  step.tokens.gaps.add(6'000);
  metrics_.on_step(step);
  metrics_.on_step(step);
  const std::string text = scrape();
  const std::string labels = "{engine=\"0\",model_name=\"tiny\"}";
  EXPECT_THAT(text, HasSubstr("vllm:generation_tokens_total" + labels + " 6\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total" + labels + " 80\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_cached_total" + labels + " 64\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_queries_total" + labels + " 80\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_hits_total" + labels + " 24\n"));
  EXPECT_THAT(text, HasSubstr("vllm:external_prefix_cache_hits_total" + labels + " 40\n"));
  EXPECT_THAT(text, HasSubstr("vllm:external_prefix_cache_queries_total" + labels + " 0\n"));  // there is no tier
  EXPECT_THAT(text, HasSubstr("vllm:inter_token_latency_seconds_count" + labels + " 4\n"));
  EXPECT_THAT(text, HasSubstr("vllm:inter_token_latency_seconds_sum" + labels + " 0.02\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:inter_token_latency_seconds_bucket{engine=\"0\",model_name=\"tiny\",le=\"0.005\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:inter_token_latency_seconds_bucket{engine=\"0\",model_name=\"tiny\",le=\"0.0075\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count" + labels + " 2\n"));
  EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_sum" + labels + " 84\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:step_seconds_count{kind=\"forward\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:step_rows_total{kind=\"prefill\"} 80\n"));
}

TEST_F(MetricsTest, RequestsAreSeenWhenTheyEnd) {
  metrics_.on_request(finished());
  const std::string text = scrape();
  const std::string labels = "{engine=\"0\",model_name=\"tiny\"}";
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"tiny\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"tiny\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("vllm:e2e_request_latency_seconds_sum" + labels + " 1.02\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_queue_time_seconds_sum" + labels + " 0.002\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_decode_time_seconds_sum" + labels + " 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_time_per_output_token_seconds_sum" + labels + " 0.1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_prefill_kv_computed_tokens_sum" + labels + " 8\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:request_misses_total{reason=\"cold\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:missed_prompt_tokens_total{reason=\"cold\"} 8\n"));
}

TEST_F(MetricsTest, ARefusedRequestIsNoFinishedOne) {
  RequestRecord refused = finished();
  refused.started_us = refused.first_token_us = 0;
  refused.outcome = RequestRecord::Outcome::kFailed;
  metrics_.on_request(refused);
  const std::string text = scrape();
  EXPECT_THAT(text,
              HasSubstr("vllm:request_success_total{engine=\"0\",finished_reason=\"error\",model_name=\"tiny\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("vllm:e2e_request_latency_seconds_count{engine=\"0\",model_name=\"tiny\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tenant_requests_total{finished_reason=\"refused\",tenant=\"none\"} 1\n"));
}

TEST_F(MetricsTest, TenantsAreBounded) {
  for (int i = 0; i < 1000; ++i) metrics_.on_request(finished("t" + std::to_string(i)));
  metrics_.on_request(finished("t3"));
  metrics_.on_request(finished("other"));
  metrics_.on_request(finished());
  const std::string text = scrape();
  EXPECT_THAT(text, HasSubstr("pagoda:tenant_requests_total{finished_reason=\"length\",tenant=\"t3\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tenant_requests_total{finished_reason=\"length\",tenant=\"none\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tenant_requests_total{finished_reason=\"length\",tenant=\"t31\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("tenant=\"t32\"")));
  EXPECT_THAT(text, HasSubstr("pagoda:tenant_requests_total{finished_reason=\"length\",tenant=\"other\"} 969\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tenant_generation_tokens_total{tenant=\"t3\"} 22\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tenant_time_to_first_token_seconds_count{tenant=\"t3\"} 2\n"));
}

TEST_F(MetricsTest, ATenantsNameIsEscaped) {
  metrics_.on_request(finished("a\"b\\c\nd"));
  EXPECT_THAT(scrape(), HasSubstr(R"(tenant="a\"b\\c\nd")"));
}

TEST_F(MetricsTest, TheAccountTellsWasteSharingEvictionsAndSessions) {
  kv::Account account;
  const kv::GroupAccount group{
      .block_bytes = 320, .logical_tokens = 90, .stored_tokens = 60, .reserved_tokens = 3, .wasted_tokens = 5};
  account.models = {{kv::ModelId(0), {group}}};
  account.index = kv::PrefixStats{.nodes = 7, .evicted_for_room = 11};
  account.sessions = kv::SessionStats{.sessions = 2, .created = 6};
  MetricsReading reading{.engine = stats()};
  reading.account = account;
  const std::string text = scrape(reading);
  EXPECT_THAT(text, HasSubstr("pagoda:kv_wasted_bytes 50\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:kv_reserved_bytes 30\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:kv_held_tokens 90\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:kv_stored_tokens 60\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:kv_evicted_blocks_total{reason=\"room\"} 11\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:sessions 2\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:session_events_total{event=\"created\"} 6\n"));
}

TEST_F(MetricsTest, TiersAndHttpHaveTheirLabels) {
  MetricsReading reading{.engine = stats()};
  engine::TierReport tier{.name = "redis", .store = {}, .loaded_bytes = 1, .restored_tokens = 64};
  tier.store.hits = 3;
  tier.store.open_breakers = 1;
  tier.store.faults[1] = 2;
  reading.engine.tiers = {tier};
  reading.engine.tiering.loads_slow = 4;
  reading.http.routes = {{{"GET", "/health"}, {0, 0, 5, 0, 0, 0}}, {{}, {0, 0, 0, 0, 2, 0}}};
  reading.http.turned_away = 6;
  reading.dropped_steps = 8;
  const std::string text = scrape(reading);
  EXPECT_THAT(text, HasSubstr("pagoda:tier_hits_total{tier=\"redis\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tier_open_breakers{tier=\"redis\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tier_faults_total{fault=\"timeout\",tier=\"redis\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tier_restored_tokens_total{tier=\"redis\"} 64\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:tier_load_failures_total{reason=\"slow\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:http_requests_total{method=\"GET\",route=\"/health\",status=\"2xx\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("route=\"none\",status=\"4xx\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:http_connections_refused_total 6\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:records_dropped_total{ring=\"steps\"} 8\n"));
}

TEST_F(MetricsTest, TheProcessIsThere) {
  const std::string text = scrape();
  EXPECT_THAT(text, testing::ContainsRegex("\nprocess_resident_memory_bytes [1-9]"));
  EXPECT_THAT(text, testing::ContainsRegex("\nprocess_open_fds [1-9]"));
  EXPECT_THAT(text, testing::ContainsRegex("\nprocess_start_time_seconds 1[0-9]{9}"));
  EXPECT_THAT(text, HasSubstr("# TYPE process_cpu_seconds_total counter\n"));
}

}  // namespace
}  // namespace pagoda::serve
