#include "serve/diagnosing.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace pagoda::serve {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr size_t kMostFirstTokens = 1000;  // of one second; more do not change a median
constexpr int64_t kLeastHeldUpUs = 5'000;  // shorter steps differ by more for many reasons

int64_t between(int64_t from_us, int64_t to_us) { return from_us > 0 && to_us > from_us ? to_us - from_us : 0; }

void add(tools::Window& to, const tools::Window& from) {
  for (const auto member :
       {&tools::Window::n_steps,        &tools::Window::plan_us,           &tools::Window::forward_us,
        &tools::Window::attention_us,   &tools::Window::sample_us,         &tools::Window::prefill_rows,
        &tools::Window::decode_rows,    &tools::Window::n_decode_steps,    &tools::Window::decode_forward_us,
        &tools::Window::decode_context, &tools::Window::decode_step_rows,  &tools::Window::running_steps,
        &tools::Window::waiting_steps,  &tools::Window::n_late_steps,      &tools::Window::n_held_up_steps,
        &tools::Window::n_preemptions,  &tools::Window::n_requests,        &tools::Window::prompt_tokens,
        &tools::Window::cached_tokens,  &tools::Window::completion_tokens, &tools::Window::recomputed_tokens,
        &tools::Window::evicted_misses, &tools::Window::queue_us,          &tools::Window::prefill_us,
        &tools::Window::decode_us,      &tools::Window::load_waited_us}) {
    to.*member += from.*member;
  }
}

// The upper bound of the bucket where it lies.
template <typename Counts>
double percentile_of(const Counts& counts, double q) {
  uint64_t n = 0, seen = 0;
  for (const uint64_t count : counts) n += count;
  for (size_t i = 0; i < counts.size(); ++i) {
    seen += counts[i];
    if (n > 0 && static_cast<double>(seen) >= q * static_cast<double>(n))
      return static_cast<double>(engine::kTokenGapBoundsUs[std::min(i, engine::kTokenGapBoundsUs.size() - 1)]);
  }
  return 0;
}

}  // namespace

Diagnosing::Slot& Diagnosing::slot_at(int64_t us) {
  if (first_us_ < 0) first_us_ = us;
  const int64_t second = us / kSecondUs;
  Slot& slot = slots_[static_cast<size_t>(second % kSlots)];
  if (slot.second != second) slot = {.second = second, .sums = {}};
  return slot;
}

void Diagnosing::on_request(const engine::RequestRecord& record) {
  Slot& slot = slot_at(record.finished_us);
  tools::Window& sums = slot.sums;
  ++sums.n_requests;
  sums.prompt_tokens += record.prompt_tokens;
  sums.cached_tokens += record.cached_tokens;
  sums.completion_tokens += record.completion_tokens;
  sums.recomputed_tokens += record.recomputed_tokens;
  sums.evicted_misses += record.miss == pagoda::kv::MissReason::kEvicted;
  sums.queue_us += between(record.queued_us, record.started_us);
  sums.prefill_us += between(record.started_us, record.first_token_us);
  sums.decode_us += between(record.first_token_us, record.finished_us);
  sums.load_waited_us += record.load_waited_us;
  if (record.first_token_us > 0 && slot.first_tokens_us.size() < kMostFirstTokens)
    slot.first_tokens_us.push_back(record.first_token_us - record.arrival_us);
}

void Diagnosing::on_step(const engine::StepRecord& record) {
  Slot& slot = slot_at(record.begin_us);
  tools::Window& sums = slot.sums;
  const int64_t took_us = int64_t{record.plan_us} + record.forward_us + record.sample_us;
  ++sums.n_steps;
  sums.plan_us += record.plan_us;
  sums.forward_us += record.forward_us;
  sums.attention_us += record.attention_us;
  sums.sample_us += record.sample_us;
  sums.prefill_rows += record.prefill_rows;
  sums.decode_rows += record.decode_rows;
  if (record.prefill_rows == 0) {
    ++sums.n_decode_steps;
    sums.decode_forward_us += record.forward_us;
    sums.decode_context += record.decode_context;
    sums.decode_step_rows += record.decode_rows;
  }
  sums.running_steps += record.running;
  sums.waiting_steps += record.waiting;
  sums.n_late_steps += record.target_us > 0 && record.decode_rows > 0 && took_us > record.target_us;
  sums.n_held_up_steps +=
      record.predicted_us > 0 && took_us > kLeastHeldUpUs && took_us > 2 * int64_t{record.predicted_us};
  sums.n_preemptions += record.preempted;
  sums.target_us = record.target_us;
  for (size_t i = 0; i < slot.gaps.size(); ++i) slot.gaps[i] += record.tokens.gaps.counts[i];
}

tools::Window Diagnosing::window(int64_t now_us, const engine::EngineStats& stats,
                                 const std::optional<kv::Account>& account) const {
  tools::Window w;
  std::vector<int64_t> first_tokens_us;
  decltype(Slot::gaps) gaps{};
  const int64_t oldest = now_us / kSecondUs - kSlots + 1;
  for (const Slot& slot : slots_) {
    if (slot.second < oldest) continue;
    add(w, slot.sums);
    w.target_us = std::max(w.target_us, slot.sums.target_us);
    first_tokens_us.insert(first_tokens_us.end(), slot.first_tokens_us.begin(), slot.first_tokens_us.end());
    for (size_t i = 0; i < gaps.size(); ++i) gaps[i] += slot.gaps[i];
  }
  const int64_t begin_us = std::max(first_us_ < 0 ? now_us : first_us_, oldest * kSecondUs);
  w.seconds = static_cast<double>(std::max<int64_t>(now_us - begin_us, 1)) * 1e-6;
  if (!first_tokens_us.empty()) {
    const auto middle = first_tokens_us.begin() + static_cast<ptrdiff_t>(first_tokens_us.size() / 2);
    std::ranges::nth_element(first_tokens_us, middle);
    w.ttft_p50_us = static_cast<double>(*middle);
  }
  w.gap_p50_us = percentile_of(gaps, 0.5);
  w.gap_p99_us = percentile_of(gaps, 0.99);
  w.kv_budget_bytes = stats.kv_budget_bytes;
  w.kv_live_bytes = stats.kv_live_bytes;
  if (account && account->index) w.kv_held_bytes = account->index->held_bytes;
  if (account && account->reuse) {
    w.hit_rate = account->reuse->hit_rate(1);
    w.hit_rate_at_twice = account->reuse->hit_rate(2);
  }
  w.weight_bytes = capacity_.weight_bytes;
  w.kv_bytes_per_token = capacity_.kv_bytes_per_token;
  w.n_threads = capacity_.n_threads;
  w.usable_cores = capacity_.usable_cores;
  return w;
}

std::string diagnosis_json(const tools::Window& w, const tools::Diagnosis& diagnosis) {
  using Json = nlohmann::ordered_json;
  const double seconds = std::max(w.seconds, 1e-6);
  const auto rounded = [](double part) { return std::round(std::clamp(part, 0.0, 1.0) * 1e4) / 1e4; };
  const auto share = [&](int64_t us) { return rounded(static_cast<double>(us) * 1e-6 / seconds); };
  Json findings = Json::array();
  for (const tools::Finding& found : diagnosis.findings) {
    findings.push_back({{"kind", found.kind},
                        {"bound", to_string(found.bound)},
                        {"weight", found.weight},
                        {"says", found.says},
                        {"evidence", found.evidence},
                        {"advice", found.advice.empty() ? Json(nullptr) : Json(found.advice)}});
  }
  const Json out{{"object", "diagnosis"},
                 {"bound", to_string(diagnosis.bound)},
                 {"summary", diagnosis.summary},
                 {"window_seconds", w.seconds},
                 {"time",
                  {{"weights", share(w.forward_us - w.attention_us)},
                   {"attention", share(w.attention_us)},
                   {"sampling", share(w.sample_us)},
                   {"scheduling", share(w.plan_us)},
                   {"idle", rounded(1 - w.busy_seconds() / seconds)}}},
                 {"steps", w.n_steps},
                 {"requests", w.n_requests},
                 {"tier_wait_seconds", static_cast<double>(w.load_waited_us) * 1e-6},
                 {"findings", std::move(findings)}};
  return out.dump();
}

std::optional<std::string> diagnosis_text(std::string_view json) {
  const auto answer = nlohmann::json::parse(json, nullptr, false);
  if (!answer.is_object() || !answer.contains("object") || answer["object"] != "diagnosis") return std::nullopt;
  try {
    std::string text = fmt::format("{}\n\nthe last {:.0f} s: {} requests ended, {} steps; of the time ",
                                   answer.at("summary").get<std::string>(), answer.at("window_seconds").get<double>(),
                                   answer.at("requests").get<int64_t>(), answer.at("steps").get<int64_t>());
    bool is_first = true;
    for (const char* part : {"weights", "attention", "sampling", "scheduling", "idle"}) {
      text += fmt::format("{}{:.0f} % {}", is_first ? "" : ", ", 100 * answer.at("time").at(part).get<double>(), part);
      is_first = false;
    }
    text += '\n';
    for (const auto& found : answer.at("findings")) {
      text += fmt::format("\n{} ({}, weight {:.2f})\n  {}\n", found.at("says").get<std::string>(),
                          found.at("bound").get<std::string>(), found.at("weight").get<double>(),
                          found.at("evidence").get<std::string>());
      if (found.at("advice").is_string()) text += fmt::format("  try: {}\n", found.at("advice").get<std::string>());
    }
    return text;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;  // another version's
  }
}

}  // namespace pagoda::serve
