#include "serve/metrics_pagoda.h"

#include <algorithm>

#include "serve/process_figures.h"

namespace pagoda::serve {
namespace {

const Buckets kStepSeconds{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                           0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
constexpr std::array<const char*, 6> kStatusClasses{"gone", "1xx", "2xx", "3xx", "4xx", "5xx"};
constexpr auto kMissReasons = static_cast<size_t>(kv::MissReason::kOff) + 1;

uint64_t sum_tokens(const kv::Account& account, uint64_t kv::GroupAccount::* tokens) {
  uint64_t sum = 0;
  for (const kv::ModelAccount& model : account.models) {
    for (const kv::GroupAccount& group : model.groups) sum += group.*tokens;
  }
  return sum;
}

}  // namespace

PagodaMetrics::PagodaMetrics(prometheus::Registry& registry, const std::string& version)
    : families_(registry), tenants_(registry) {
  now("pagoda:build_info", "1; the label tells the version", {{"version", version}}).Set(1);
  now("process_start_time_seconds", "Start of the process, in Unix time").Set(process_start_seconds());
  make_misses();
  make_steps();
}

Counter& PagodaMetrics::total(const std::string& name, const std::string& help, const Labels& labels) {
  return families_.counters(name, help).Add(labels);
}
Gauge& PagodaMetrics::now(const std::string& name, const std::string& help, const Labels& labels) {
  return families_.gauges(name, help).Add(labels);
}

void PagodaMetrics::make_misses() {
  for (size_t i = 0; i < kMissReasons; ++i) {
    const Labels labels{{"reason", std::string(to_string(static_cast<kv::MissReason>(i)))}};
    missed_requests_.push_back(&total("pagoda:request_misses_total",
                                      "Requests, by why their first computed prompt token was not cached", labels));
    missed_tokens_.push_back(&total("pagoda:missed_prompt_tokens_total",
                                    "Prompt tokens that were computed, by why the first of them was not cached",
                                    labels));
  }
  recomputed_ =
      &total("pagoda:recomputed_tokens_total", "Rows of positions that were there before a preemption or edit");
  copied_ = &total("pagoda:copied_prompt_tokens_total", "Cached prompt tokens that were copied from a partial block");
  dropped_ = &total("pagoda:context_dropped_tokens_total", "Tokens that context policies dropped");
  shared_wait_ =
      &total("pagoda:shared_prefix_wait_seconds_total", "Time requests waited for rows that others computed");
  load_wait_ = &total("pagoda:tier_load_wait_seconds_total", "Time requests waited for blocks of a tier");
}

void PagodaMetrics::make_steps() {
  auto& seconds = families_.histograms("pagoda:step_seconds", "Parts of a step: plan, forward and sample");
  plan_ = &seconds.Add({{"kind", "plan"}}, kStepSeconds);
  forward_ = &seconds.Add({{"kind", "forward"}}, kStepSeconds);
  sample_ = &seconds.Add({{"kind", "sample"}}, kStepSeconds);
  prefill_rows_ = &total("pagoda:step_rows_total", "Rows computed, by kind", {{"kind", "prefill"}});
  decode_rows_ = &total("pagoda:step_rows_total", "Rows computed, by kind", {{"kind", "decode"}});
}

void PagodaMetrics::on_step(const engine::StepRecord& record) {
  plan_->Observe(seconds(record.plan_us));
  forward_->Observe(seconds(record.forward_us));
  sample_->Observe(seconds(record.sample_us));
  prefill_rows_->Increment(record.prefill_rows);
  decode_rows_->Increment(record.decode_rows);
}

void PagodaMetrics::on_request(const engine::RequestRecord& record) {
  tenants_.on_request(record);
  if (record.first_token_us == 0) return;
  const auto reason = static_cast<size_t>(record.miss);
  missed_requests_.at(reason)->Increment();
  missed_tokens_.at(reason)->Increment(record.prompt_tokens - record.cached_tokens);
  recomputed_->Increment(record.recomputed_tokens);
  copied_->Increment(record.copied_tokens);
  dropped_->Increment(static_cast<double>(record.dropped_tokens));
  shared_wait_->Increment(seconds(record.waited_us));
  load_wait_->Increment(seconds(record.load_waited_us));
}

void PagodaMetrics::read(const MetricsReading& reading) {
  read_memory(reading.engine);
  if (reading.account) read_account(*reading.account);
  read_tiers(reading.engine);
  read_http(reading.http);
  for (const auto& [outcome, n] : reading.outcomes) {
    set_total(total("pagoda:requests_total", "API requests that were answered or refused, by outcome",
                    {{"outcome", std::string(outcome)}}),
              n);
  }
  set_total(total("pagoda:steps_total", "Steps"), reading.engine.steps);
  const char* dropped = "Records that found their ring full: what was counted from them is short by so many";
  set_total(total("pagoda:records_dropped_total", dropped, {{"ring", "requests"}}), reading.dropped_requests);
  set_total(total("pagoda:records_dropped_total", dropped, {{"ring", "steps"}}), reading.dropped_steps);
  read_process();
}

void PagodaMetrics::read_memory(const engine::EngineStats& stats) {
  set(now("pagoda:kv_budget_bytes", "KV budget; the states of pagoda:kv_bytes add up to it"), stats.kv_budget_bytes);
  const std::pair<const char*, uint64_t> states[] = {{"live", stats.kv_live_bytes},
                                                     {"cached", stats.kv_cached_bytes},
                                                     {"free", stats.kv_free_bytes},
                                                     {"overhead", stats.kv_overhead_bytes}};
  for (const auto& [state, bytes] : states)
    set(now("pagoda:kv_bytes", "KV memory by state", {{"state", state}}), bytes);
}

// Without an index or sessions the figures are 0, so that they are always there.
void PagodaMetrics::read_account(const kv::Account& account) {
  set(now("pagoda:kv_wasted_bytes", "Slots of live blocks behind the last token"),
      sum_bytes(account, &kv::GroupAccount::wasted_tokens));
  set(now("pagoda:kv_reserved_bytes", "Slots granted for tokens that are not there yet"),
      sum_bytes(account, &kv::GroupAccount::reserved_tokens));
  set(now("pagoda:kv_held_tokens", "Tokens that sequences hold, each as often as it is held"),
      sum_tokens(account, &kv::GroupAccount::logical_tokens));
  set(now("pagoda:kv_stored_tokens", "Tokens that sequences hold, each shared one once"),
      sum_tokens(account, &kv::GroupAccount::stored_tokens));
  const kv::PrefixStats index = account.index.value_or(kv::PrefixStats{});
  const std::pair<const char*, uint64_t> evictions[] = {{"room", index.evicted_for_room},
                                                        {"other_groups", index.evicted_for_others},
                                                        {"window_share", index.evicted_local},
                                                        {"behind_window", index.passed_local}};
  for (const auto& [reason, n] : evictions)
    set_total(total("pagoda:kv_evicted_blocks_total", "Cached blocks that went, by why", {{"reason", reason}}), n);
  set_total(total("pagoda:session_evicted_blocks_total", "Evicted blocks that a session held"), index.evicted_held);
  set(now("pagoda:prefix_index_nodes", "Nodes of the prefix index"), index.nodes);
  set(now("pagoda:prefix_index_bytes", "Memory of the prefix index itself, outside the KV budget"), index.memory_bytes);

  const kv::SessionStats sessions = account.sessions.value_or(kv::SessionStats{});
  set(now("pagoda:sessions", "Sessions"), sessions.sessions);
  set(now("pagoda:sessions_pinned", "Sessions that are pinned"), sessions.pinned);
  set(now("pagoda:session_held_bytes", "KV memory that sessions hold, in use or not"), index.held_bytes);
  set_total(total("pagoda:session_turns_total", "Requests of sessions"), sessions.turns);
  const std::pair<const char*, uint64_t> events[] = {{"created", sessions.created},
                                                     {"restored", sessions.restored},
                                                     {"expired", sessions.expired},
                                                     {"displaced", sessions.displaced},
                                                     {"deleted", sessions.deleted}};
  for (const auto& [event, n] : events)
    set_total(total("pagoda:session_events_total", "What became of sessions", {{"event", event}}), n);
}

void PagodaMetrics::read_http(const http::HttpStats& stats) {
  set(now("pagoda:http_connections", "Open connections"), stats.connections);
  set(now("pagoda:http_requests_active", "Requests being received, handled or answered"), stats.active_requests);
  set_total(total("pagoda:http_connections_accepted_total", "Connections that were let in"), stats.accepted);
  set_total(total("pagoda:http_connections_refused_total", "Connections there was no room for"), stats.turned_away);
  for (const http::HttpStats::Route& route : stats.routes) {
    const std::string name = route.name.pattern.empty() ? "none" : route.name.pattern;
    for (size_t i = 0; i < route.by_class.size(); ++i) {
      if (route.by_class[i] == 0) continue;
      set_total(total("pagoda:http_requests_total",
                      "HTTP requests by route and status class; gone: the client left before the answer began",
                      {{"method", route.name.method}, {"route", name}, {"status", kStatusClasses[i]}}),
                route.by_class[i]);
    }
  }
}

void PagodaMetrics::read_process() {
  const ProcessFigures figures = process_figures();
  set(now("process_resident_memory_bytes", "Resident memory"), figures.resident_bytes);
  set(now("process_open_fds", "Open file descriptors"), figures.open_files);
  set_total(total("process_cpu_seconds_total", "User and system CPU time"), figures.cpu_seconds);
}

}  // namespace pagoda::serve
