// The two record rings that leave the engine. Metrics, diagnosis, recording and the console read these and nothing else.
// A full ring drops and counts; the engine never waits for a reader.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/ring.h"
#include "engine/request.h"
#include "engine/time_counts.h"
#include "kv/miss.h"
#include "kv/tiering_stats.h"

namespace pagoda::engine {

// One per request, when it ends. Times in microseconds of the engine's clock.
struct RequestRecord {
  RequestId id;
  std::string tenant{};  // empty: none
  std::string model{};   // as served
  int64_t arrival_us = 0;
  int64_t queued_us = 0;   // intake done, in the scheduler's queue
  int64_t started_us = 0;  // first row computed
  int64_t first_token_us = 0;
  int64_t finished_us = 0;
  int prompt_tokens = 0;
  int cached_tokens = 0;                             // of the prompt, reused
  int copied_tokens = 0;                             // of those, by copy-on-write
  std::array<int, kv::kMaxTiers> restored_tokens{};  // of those, by tier: loaded for this request
  int completion_tokens = 0;
  int preemptions = 0;
  int recomputed_tokens = 0;                    // rows of positions that were there before
  int64_t waited_us = 0;                        // for rows that other requests computed
  int64_t load_waited_us = 0;                   // for blocks that a tier had
  kv::MissReason miss = kv::MissReason::kNone;  // of the first prompt token that was computed
  int context_edits = 0;                        // of a context policy
  int64_t dropped_tokens = 0;                   // by them
  int n_choices = 1;
  int max_tokens = 0;         // as asked; 0: not said
  int max_choice_tokens = 0;  // of completion_tokens, of the choice with most
  enum class Outcome : uint8_t { kStop, kLength, kCancelled, kFailed, kTimeout } outcome = Outcome::kStop;
};

// What clients heard of a step.
struct StepTokens {
  int32_t generated = 0;
  // Of requests whose first token this is; cached ones include restored ones.
  int32_t prompt = 0;
  int32_t cached = 0;
  int32_t restored = 0;                           // from a tier
  TimeCounts<kFirstTokenBoundsUs> first_token{};  // since the request's arrival
  TimeCounts<kTokenGapBoundsUs> gaps{};           // since the sequence's token before
};

// One per step.
struct StepRecord {
  uint64_t step = 0;
  uint32_t model = 0;  // index of Engine::models()
  int64_t begin_us = 0;
  int32_t plan_us = 0;  // scheduling and batch building
  int32_t forward_us = 0;
  int32_t attention_us = 0;  // of it
  int32_t sample_us = 0;     // sampling, detokenizing, events
  int32_t prefill_rows = 0;
  int32_t decode_rows = 0;
  int32_t sampled_rows = 0;
  int32_t preempted = 0;
  int32_t running = 0;
  int32_t waiting = 0;
  uint64_t live_blocks = 0;
  int64_t decode_context = 0;  // tokens that the decode rows read
  int32_t predicted_us = 0;    // by what was learnt from the steps before
  int32_t target_us = 0;       // 0: none
  StepTokens tokens{};
};

struct Records {
  Ring<RequestRecord> requests{4096};
  Ring<StepRecord> steps{4096};
};

}  // namespace pagoda::engine
