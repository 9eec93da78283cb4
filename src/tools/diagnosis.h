// Diagnosis: what holds a server back, in words with figures: compute, memory bandwidth, memory capacity, scheduling or its clients, the evidence,
// which setting to change, and what that should bring.
//
//   Window w = <sums of records over the last minute>;   for (const Finding& f : diagnose(w)) ...     the most important first
//
// Pure functions over plain data: the server, `pagoda doctor --server` and tests see the same.     Units: in the names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pagoda::tools {

// What a server did in a span of time.
struct Window {
  double seconds = 0;

  // Steps.
  int64_t n_steps = 0;
  int64_t plan_us = 0;
  int64_t forward_us = 0;
  int64_t attention_us = 0;  // of forward_us
  int64_t sample_us = 0;
  int64_t prefill_rows = 0;
  int64_t decode_rows = 0;
  int64_t n_decode_steps = 0;     // without prefill rows
  int64_t decode_forward_us = 0;  // of them, likewise:
  int64_t decode_context = 0;     // tokens read, over their rows
  int64_t decode_step_rows = 0;
  int64_t running_steps = 0;  // sequences that ran, summed over steps
  int64_t waiting_steps = 0;  // that waited
  int64_t n_late_steps = 0;
  int64_t n_held_up_steps = 0;  // that took more than twice what was predicted
  int64_t n_preemptions = 0;
  double target_us = 0;

  // Requests that ended.
  int64_t n_requests = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t recomputed_tokens = 0;
  int64_t evicted_misses = 0;  // whose first computed token had been cached once
  int64_t queue_us = 0;
  int64_t prefill_us = 0;
  int64_t decode_us = 0;
  int64_t load_waited_us = 0;
  double ttft_p50_us = 0;
  double gap_p50_us = 0;
  double gap_p99_us = 0;

  // Now.
  uint64_t kv_budget_bytes = 0;
  uint64_t kv_live_bytes = 0;
  uint64_t kv_held_bytes = 0;  // by sessions
  uint64_t weight_bytes = 0;
  double kv_bytes_per_token = 0;
  int n_threads = 0;
  double usable_cores = 0;       // quota counted in
  double read_bytes_per_s = 0;   // of this machine, measured at that working set; 0: not known
  double hit_rate_at_twice = 0;  // of the reuse-distance curve, where the budget were twice as large; 0: not known
  double hit_rate = 0;           // at the budget, likewise

  double busy_seconds() const { return static_cast<double>(plan_us + forward_us + sample_us) * 1e-6; }
};

enum class BoundBy : uint8_t { kClients, kCompute, kBandwidth, kCapacity, kScheduling };
std::string_view to_string(BoundBy bound);

struct Finding {
  std::string_view kind;  // a stable name: "kv_capacity"
  BoundBy bound = BoundBy::kClients;
  double weight = 0;     // 0 to 1: how much of the time or of the requests it concerns
  std::string says;      // what holds it back
  std::string evidence;  // the figures
  std::string advice;    // which setting, and what it should bring; empty: there is none
};

struct Diagnosis {
  BoundBy bound = BoundBy::kClients;  // of the first finding
  std::string summary;                // one sentence
  std::vector<Finding> findings;      // the weightiest first; never empty
};
Diagnosis diagnose(const Window& window);

}  // namespace pagoda::tools
