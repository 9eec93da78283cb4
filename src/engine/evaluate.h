// Teacher-forced evaluation: the loss of a token list, and a hash of every logit on the way. What `pagoda eval` prints and what the
// equality tests compare.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/step_runner.h"

namespace pagoda::engine {

struct Evaluation {
  int n_tokens = 0;
  double nll = 0;            // mean natural-log loss of tokens 2..n, each given all before it; 0 for a single token
  double ppl = 0;            // exp(nll)
  uint64_t logits_hash = 0;  // XXH3-64 over the little-endian f32 logits of all positions in order, after softcap
  std::vector<std::pair<TokenId, float>> top_logits;  // of the last position, largest first
};

// Runs the tokens through the runner's cache, alone.  KvReuse::kOff computes every position's logits from an empty cache.
// Errors: kInvalidArgument (no tokens, ids out of range), kContextExceeded.
Result<Evaluation> evaluate(StepRunner& runner, std::span<const TokenId> tokens, KvReuse kv_reuse, int n_top_logits);

}  // namespace pagoda::engine
