// Sampler: the next token from a row of logits. Order: penalties, bias, mask, temperature, min_p, top_k, typical_p, top_p.
// A draw is a pure function of (logits, history, seed, choice, position), so a request's tokens never depend on its neighbours; ties
// take the lowest id.     Threads: engine thread only; scratch is reused, so one Sampler serves all sequences.
// Source: Holtzman et al. 2020 (top_p), Meister et al. 2023 (typical_p), Nguyen et al. 2024 (min_p), Keskar et al. 2019 (repetition).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "kernels/kernels.h"

namespace pagoda::engine {

// What penalties look at.
struct TokenHistory {
  std::unordered_map<TokenId, int> generated;  // times each was generated
  std::unordered_map<TokenId, int> seen;       // in prompt or output; filled only where the repetition penalty is used
};

// What fixes a draw besides the logits.
struct DrawKey {
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t position = 0;
};

// True if the token is just the largest logit: neither penalties, bias nor randomness.
bool is_plain_greedy(const SamplingParams& params);

class Sampler {
 public:
  explicit Sampler(const kernels::KernelTable& kernels) : kernels_(kernels) {}

  // `banned` are never drawn (while others remain).
  TokenId sample(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                 std::span<const TokenId> banned, const DrawKey& key);

  // Log-probability of `token` under softmax(logits), and of the n_top most likely ones. Bytes are left to the caller.
  TokenLogprob logprob(std::span<const float> logits, TokenId token, int n_top);

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // proportional to the probability
    // Most likely first, lowest id on ties.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
  };

  void adjust(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
              std::span<const TokenId> banned);
  void collect(const SamplingParams& params, float maximum);
  void keep_top(size_t n);
  void keep_typical(float typical_p);
  void keep_nucleus(float top_p);
  TokenId draw(const DrawKey& key) const;

  const kernels::KernelTable& kernels_;
  std::vector<float> logits_;          // [vocab] after penalties, bias and mask
  std::vector<Candidate> candidates_;  // by id at first, most likely first once anything had to be ranked
};

}  // namespace pagoda::engine
