#include "tools/diagnosis.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"

namespace pagoda::tools {
namespace {

constexpr double kIdleShare = 0.5;  // below, the server waits for its clients more than they for it

double ratio(double a, double b) { return b > 0 ? a / b : 0; }
double ratio(int64_t a, int64_t b) { return ratio(static_cast<double>(a), static_cast<double>(b)); }
double ratio(uint64_t a, uint64_t b) { return ratio(static_cast<double>(a), static_cast<double>(b)); }
double ms(double us) { return us * 1e-3; }
double mib(double bytes) { return bytes / 0x1p20; }
double mean(int64_t sum, int64_t n) { return ratio(sum, n); }
double busy_share(const Window& w) { return std::min(1.0, ratio(w.busy_seconds(), w.seconds)); }
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

using MaybeFinding = std::optional<Finding>;

// Sequences wait or are thrown out though there is computing power left.
MaybeFinding kv_capacity(const Window& w) {
  const double live = ratio(w.kv_live_bytes, w.kv_budget_bytes);
  const double preempted = ratio(w.n_preemptions, std::max<int64_t>(1, w.n_requests));
  const bool waits = mean(w.waiting_steps, w.n_steps) >= 1;
  if (w.n_preemptions == 0 && !(waits && live > 0.85)) return std::nullopt;
  const double again = ratio(w.recomputed_tokens, w.prefill_rows);
  return Finding{"kv_capacity",
                 BoundBy::kCapacity,
                 std::clamp(std::max({0.5 * preempted, again, waits ? live : 0.0}), 0.1, 1.0),
                 "KV memory is too small for the sequences that want to run at once",
                 fmt::format("{} of {:.0f} MiB in use, {} preemptions in {:.0f} s, {} of the prompt rows computed "
                             "again, {:.1f} sequences waiting",
                             percent(live), mib(static_cast<double>(w.kv_budget_bytes)), w.n_preemptions, w.seconds,
                             percent(again), mean(w.waiting_steps, w.n_steps)),
                 fmt::format("a larger --kv-memory, a smaller --kv-format (q8, k8v4), or fewer at once "
                             "(--max-running); it would save {} of the "
                             "prompt work",
                             percent(again))};
}

// TTFT is fine, but tokens come late while prompts are computed.
MaybeFinding long_prompts(const Window& w) {
  const bool mixes = w.n_decode_steps < w.n_steps && w.decode_rows > w.n_steps / 4;
  const double late = ratio(w.n_late_steps, w.n_steps);
  if (!mixes || w.gap_p50_us <= 0 || w.gap_p99_us < 4 * w.gap_p50_us || ms(w.gap_p99_us) < 50) return std::nullopt;
  const double wanted_ms = std::max(10.0, ms(w.gap_p99_us) / 2);
  return Finding{
      "long_prompts",
      BoundBy::kScheduling,
      std::clamp(0.3 + late, 0.0, 0.9),
      "long prompts share steps with running streams and stretch the time between their tokens",
      fmt::format(
          "token gaps: {:.0f} ms at p50, {:.0f} at p99; {:.0f} prompt rows a step; target {:.0f} ms, {} of the steps "
          "later than that",
          ms(w.gap_p50_us), ms(w.gap_p99_us), mean(w.prefill_rows, w.n_steps - w.n_decode_steps), ms(w.target_us),
          percent(late)),
      fmt::format("--target-itl {:.0f} would halve the long gaps; prompts would take longer", wanted_ms)};
}

// The time goes to what surrounds the forward.
MaybeFinding overhead(const Window& w) {
  const double outside = ratio(w.plan_us + w.sample_us, w.plan_us + w.forward_us + w.sample_us);
  if (outside < 0.2 || w.n_steps == 0) return std::nullopt;
  return Finding{
      "overhead",
      BoundBy::kScheduling,
      outside,
      "scheduling, sampling and rendering take a large part of each step: the requests are short, or sample in costly "
      "ways",
      fmt::format("{} of the step time is not the model's: {:.2f} ms planning and {:.2f} ms sampling a step; {:.0f} "
                  "prompt and {:.0f} "
                  "answer tokens a request",
                  percent(outside), ms(mean(w.plan_us, w.n_steps)), ms(mean(w.sample_us, w.n_steps)),
                  mean(w.prompt_tokens, w.n_requests), mean(w.completion_tokens, w.n_requests)),
      "fewer, longer requests (several prompts or n in one); logprobs and penalties off where they are not needed"};
}

MaybeFinding sessions(const Window& w) {
  const double held = ratio(w.kv_held_bytes, w.kv_budget_bytes);
  if (held < 0.4) return std::nullopt;
  return Finding{"sessions",
                 BoundBy::kCapacity,
                 held * (w.evicted_misses > 0 || w.n_preemptions > 0 ? 1 : 0.5),
                 "sessions hold a large part of the KV memory",
                 fmt::format("sessions hold {} of {:.0f} MiB; {} prompts found evicted what they began with",
                             percent(held), mib(static_cast<double>(w.kv_budget_bytes)), w.evicted_misses),
                 "a shorter --session-ttl, fewer pins, or --kv-disk DIR to let idle sessions sink to disk"};
}

// Prompts are computed though they, or their beginnings, had been before.
MaybeFinding cold_cache(const Window& w) {
  const double evicted = ratio(w.evicted_misses, w.n_requests);
  const double prefill_share = ratio(w.prefill_us, w.prefill_us + w.decode_us);
  const double gain = std::max(0.0, w.hit_rate_at_twice - w.hit_rate);
  if (w.n_requests < 4 || prefill_share < 0.3 || (evicted < 0.2 && gain < 0.1)) return std::nullopt;
  const double hits = ratio(w.cached_tokens, w.prompt_tokens);
  return Finding{
      "cold_cache",
      BoundBy::kCapacity,
      std::clamp(prefill_share * std::max(evicted, gain), 0.1, 1.0),
      "prompts are computed again whose beginnings were cached before and had to go",
      fmt::format("{} of the prompt tokens were found cached, {} of the prompts missed what had been evicted; "
                  "computing prompts is {} "
                  "of the requests' time",
                  percent(hits), percent(evicted), percent(prefill_share)),
      gain > 0.02
          ? fmt::format("--kv-memory {:.0f}M would raise the hits from {} to {}; --kv-disk DIR keeps them on disk",
                        2 * mib(static_cast<double>(w.kv_budget_bytes)), percent(w.hit_rate),
                        percent(w.hit_rate_at_twice))
          : "a larger --kv-memory, or --kv-disk DIR"};
}

MaybeFinding too_many_threads(const Window& w) {
  if (w.n_threads == 0 || w.usable_cores <= 0 || w.n_threads <= w.usable_cores + 0.5) return std::nullopt;
  return Finding{
      "threads",
      BoundBy::kScheduling,
      0.8,
      "there are more compute threads than cores they may use",
      fmt::format("{} threads on {:.1f} cores: each phase of a step waits for the thread that is not running",
                  w.n_threads, w.usable_cores),
      fmt::format("--threads {:.0f}", std::max(1.0, w.usable_cores))};
}

MaybeFinding noisy_cpu(const Window& w) {
  const double held_up = ratio(w.n_held_up_steps, w.n_steps);
  if (w.n_steps < 50 || held_up < 0.02) return std::nullopt;
  return Finding{
      "noisy_cpu",
      BoundBy::kCompute,
      std::clamp(3 * held_up, 0.1, 0.9),
      "other work takes the processor away: steps of one size take very different times",
      fmt::format("{} of {} steps took more than twice what steps of their size take", percent(held_up), w.n_steps),
      "move other work away, or pin the server to cores of its own (taskset, cpuset)"};
}

MaybeFinding slow_tiers(const Window& w) {
  const int64_t all_us = w.queue_us + w.prefill_us + w.decode_us;
  const double waited = ratio(w.load_waited_us, all_us);
  if (waited < 0.1) return std::nullopt;
  return Finding{"tier_io",
                 BoundBy::kBandwidth,
                 waited,
                 "requests wait for blocks that are being read from disk or Redis",
                 fmt::format("{} of the requests' time", percent(waited)),
                 "a larger --kv-memory keeps them nearer; a faster disk or network"};
}

// What the computing itself is bound by, while the server is busy.
Finding work(const Window& w) {
  const double prefills =
      ratio(static_cast<double>(w.forward_us - w.decode_forward_us), static_cast<double>(w.forward_us));
  const double attention = ratio(w.attention_us, w.forward_us);
  const double rows = mean(w.decode_step_rows, w.n_decode_steps);
  const double busy = busy_share(w);
  if (prefills > 0.5 || rows > 8) {
    return {"compute",
            BoundBy::kCompute,
            0.3 * busy,
            "the processor's arithmetic: prompts and many rows at once keep it busy",
            fmt::format("busy {} of the time; {} of it in steps with prompt rows, {:.1f} rows in the others; attention "
                        "is {} of the forwards",
                        percent(busy), percent(prefills), std::max(rows, 0.0), percent(attention)),
            "more cores, a smaller model, or more prefix hits (one common beginning for all prompts)"};
  }
  const double seconds = static_cast<double>(w.decode_forward_us) * 1e-6;
  const double bytes = static_cast<double>(w.n_decode_steps) * static_cast<double>(w.weight_bytes) +
                       static_cast<double>(w.decode_context) * w.kv_bytes_per_token;
  const double rate = ratio(bytes, seconds);
  std::string evidence = fmt::format(
      "{:.1f} rows a step read {:.0f} MiB of weights and {:.0f} MiB of K and V: {:.1f} GB/s", rows,
      mib(static_cast<double>(w.weight_bytes)),
      mib(ratio(static_cast<double>(w.decode_context) * w.kv_bytes_per_token, static_cast<double>(w.n_decode_steps))),
      rate * 1e-9);
  if (w.read_bytes_per_s > 0)
    evidence += fmt::format(" of the {:.1f} that this machine reads", w.read_bytes_per_s * 1e-9);
  return {"bandwidth",
          BoundBy::kBandwidth,
          0.3 * busy,
          "reading weights and KV from memory: few rows share each reading",
          std::move(evidence),
          "more requests at once cost little; a smaller quantization of the model, or --kv-format q8, reads less"};
}

Finding idle(const Window& w) {
  return {"clients",
          BoundBy::kClients,
          1 - busy_share(w),
          "nothing but its clients: it could serve more",
          fmt::format("busy {} of the last {:.0f} s; {} requests ended, {:.1f} sequences waited on average",
                      percent(busy_share(w)), w.seconds, w.n_requests, mean(w.waiting_steps, w.n_steps)),
          ""};
}

}  // namespace

std::string_view to_string(BoundBy bound) {
  static constexpr std::array<std::string_view, 5> kNames{"clients", "compute", "memory_bandwidth", "memory_capacity",
                                                          "scheduling"};
  return kNames[static_cast<size_t>(bound)];
}

Diagnosis diagnose(const Window& window) {
  Diagnosis out;
  for (const auto rule :
       {kv_capacity, long_prompts, overhead, sessions, cold_cache, too_many_threads, noisy_cpu, slow_tiers}) {
    if (MaybeFinding found = rule(window)) out.findings.push_back(std::move(*found));
  }
  const bool is_idle = busy_share(window) < kIdleShare;
  // Whoever waits for clients has no hurry: what is found then is worth less.
  if (is_idle) {
    for (Finding& found : out.findings) found.weight *= busy_share(window) + 0.2;
  }
  out.findings.push_back(is_idle || window.n_steps == 0 ? idle(window) : work(window));
  std::ranges::stable_sort(out.findings, std::ranges::greater(), &Finding::weight);
  const Finding& first = out.findings.front();
  out.bound = first.bound;
  out.summary = fmt::format("bound by {}: {}", to_string(first.bound), first.says);
  return out;
}

}  // namespace pagoda::tools
