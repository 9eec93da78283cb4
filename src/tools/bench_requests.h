// Requests of a bench, run together through an engine, and what came back. Threads: one caller, the only consumer of engine.records().
#pragma once

#include <vector>

#include "engine/engine.h"

namespace pagoda::tools {

struct StreamResult {
  std::vector<TokenId> tokens;
  std::vector<engine::TokenLogprob> logprobs;
  engine::RequestRecord record;
};

// All submitted at once; returns when the last has ended.  Errors: the first request's that failed; the others are cancelled.
Result<std::vector<StreamResult>> run_requests(engine::Engine& engine, std::vector<engine::Request> requests);

// n ids in [0, vocab_size), a function of seed and the position.
std::vector<TokenId> random_prompt(uint64_t seed, int n, int vocab_size);

}  // namespace pagoda::tools
