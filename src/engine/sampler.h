// Sampler: the next token from a row of logits. Order: penalties, bias, mask, temperature, min_p, top_k, typical_p, top_p.
// A draw is a pure function of (logits, history, seed, choice, position), so a request's tokens never depend on its neighbours, and the
// same on every instruction set; ties take the lowest id. A token less than e^-32 as likely as the likeliest is never drawn.
// Threads: engine thread only; scratch is reused, so one Sampler serves all sequences.
// Cost: most tiles of the row are passed over by their maximum; what needs the whole mass (plain draws, top_p, typical_p) takes
// one exponential per token, the rest little more than one look per tile (sampler_bench.cc).
// Source: Holtzman et al. 2020 (top_p), Meister et al. 2023 (typical_p), Nguyen et al. 2024 (min_p), Keskar et al. 2019 (repetition).
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/edited_logits.h"
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
  explicit Sampler(const kernels::KernelTable& kernels) : kernels_(kernels), row_(kernels) {}

  // `banned` are never drawn (while others remain).
  TokenId sample(const LogitsRow& row, const SamplingParams& params, const TokenHistory& history,
                 std::span<const TokenId> banned, const DrawKey& key);

  // Log-probability of `token` under softmax(logits), and of the n_top most likely ones. Bytes are left to the caller.
  TokenLogprob logprob(const LogitsRow& row, TokenId token, int n_top);

 private:
  struct Candidate {
    float logit;
    float weight;  // exp(exponent), the likeliest token's is 1
    int32_t id;
    // Most likely first, lowest id on ties.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
    }
  };
  // exponent(logit) = (logit - max) / temperature.
  struct Softmax {
    float max = 0;
    float temperature = 1;
    float inverse = 1;  // 1 / temperature, finite
    float exponent(float logit) const { return (logit - max) * inverse; }
  };
  // Of a set of tokens.
  struct Mass {
    double weight = 0;    // sum of weights
    double exponent = 0;  // sum of weight * exponent
  };

  void adjust(const SamplingParams& params, const TokenHistory& history, std::span<const TokenId> banned);
  Mass gather(const SamplingParams& params);
  template <typename Enough>
  void gather_down(float first_depth, float depth, const Enough& enough);
  void gather_between(float low, float high);
  void find_between(float low, float high);
  void weigh_from(size_t first);
  Mass weigh_row();
  Mass mass_of_candidates() const;
  void keep_top(size_t n);
  void keep_typical(float typical_p, const Mass& of);
  void keep_nucleus(float top_p, const Mass& of);
  template <typename Unwanted>
  void erase_from_last_band(const Unwanted& unwanted);
  template <typename Key>
  void keep_first(double wanted, const Key& key);
  TokenId draw_candidate(double uniform) const;
  TokenId draw_from_row(double uniform);

  const kernels::KernelTable& kernels_;
  EditedLogits row_;  // after penalties, bias and mask
  Softmax softmax_;
  float least_weight_ = 0;             // min_p: what weighs less is no candidate
  double gathered_ = 0;                // weight of all candidates gathered so far
  size_t last_band_ = 0;               // where it begins in candidates_
  std::vector<Candidate> candidates_;  // band after band of falling logits, by id within a band
  std::vector<Candidate> ranked_;      // scratch
  std::vector<float> tile_weights_;    // [n_tiles] of the last weigh_row
  float values_[kernels::kLogitsTile];
  int32_t ids_[kernels::kLogitsTile];
};

}  // namespace pagoda::engine
