#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/random.h"

namespace pagoda::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

double total_weight(const auto& candidates) {
  double total = 0;
  for (const auto& candidate : candidates) total += candidate.weight;
  return total;
}

}  // namespace

bool is_plain_greedy(const SamplingParams& params) {
  return params.temperature == 0 && params.repetition_penalty == 1 && params.presence_penalty == 0 &&
         params.frequency_penalty == 0 && params.logit_bias.empty();
}

void Sampler::adjust(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                     std::span<const TokenId> banned) {
  logits_.assign(logits.begin(), logits.end());
  const auto at = [&](TokenId token) -> float& { return logits_[static_cast<size_t>(token.value)]; };
  if (params.repetition_penalty != 1) {
    for (const auto& [token, count] : history.seen) {
      at(token) = at(token) > 0 ? at(token) / params.repetition_penalty : at(token) * params.repetition_penalty;
    }
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for (const auto& [token, count] : history.generated) {
      at(token) -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (token.value >= 0 && static_cast<size_t>(token.value) < logits_.size()) at(token) += bias;
  }
  for (const TokenId token : banned) at(token) = kNever;
}

TokenId Sampler::sample(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                        std::span<const TokenId> banned, const DrawKey& key) {
  adjust(logits, params, history, banned);
  const int best = kernels_.argmax(logits_.data(), static_cast<int>(logits_.size()));
  const float maximum = logits_[static_cast<size_t>(best)];
  if (params.temperature == 0 || !std::isfinite(maximum)) return TokenId(best);
  collect(params, maximum);
  if (params.top_k > 0) keep_top(static_cast<size_t>(params.top_k));
  if (params.typical_p < 1) keep_typical(params.typical_p);
  if (params.top_p < 1) keep_nucleus(params.top_p);
  return draw(key);
}

// Temperature and min_p: every token whose probability is at least min_p of the most likely one's.
void Sampler::collect(const SamplingParams& params, float maximum) {
  candidates_.clear();
  const double inverse = 1.0 / params.temperature;
  const double floor = params.min_p > 0 ? std::log(params.min_p) : -std::numeric_limits<double>::infinity();
  for (size_t id = 0; id < logits_.size(); ++id) {
    const double exponent = (static_cast<double>(logits_[id]) - maximum) * inverse;
    // Below e^-700 nothing can be drawn, and banned tokens are at -inf.
    if (exponent < floor || exponent < -700) continue;
    candidates_.push_back({logits_[id], static_cast<int32_t>(id), std::exp(exponent)});
  }
}

void Sampler::keep_top(size_t n) {
  if (n >= candidates_.size()) return;
  const auto end = candidates_.begin() + static_cast<ptrdiff_t>(n);
  std::nth_element(candidates_.begin(), end, candidates_.end());
  candidates_.erase(end, candidates_.end());
  std::sort(candidates_.begin(), candidates_.end());
}

// The tokens whose information is closest to the distribution's entropy, up to a total probability of typical_p.
void Sampler::keep_typical(float typical_p) {
  const double total = total_weight(candidates_);
  double entropy = 0;
  for (const Candidate& c : candidates_) {
    const double p = c.weight / total;
    if (p > 0) entropy -= p * std::log(p);
  }
  const auto distance = [&](const Candidate& c) { return std::abs(-std::log(c.weight / total) - entropy); };
  std::sort(candidates_.begin(), candidates_.end(), [&](const Candidate& a, const Candidate& b) {
    const double da = distance(a), db = distance(b);
    return da != db ? da < db : a < b;
  });
  double kept = 0;
  size_t n = 0;
  while (n < candidates_.size() && (n == 0 || kept < typical_p * total)) kept += candidates_[n++].weight;
  candidates_.resize(n);
  std::sort(candidates_.begin(), candidates_.end());
}

// The most likely tokens up to a total probability of top_p. Ranks only as many as it needs: first 64, then four times more each time.
void Sampler::keep_nucleus(float top_p) {
  const double wanted = top_p * total_weight(candidates_);
  double kept = 0;
  size_t n = 0;
  for (size_t ranked = 0; n < candidates_.size();) {
    if (n == ranked) {
      const size_t next = std::min(candidates_.size(), std::max<size_t>(64, ranked * 4));
      const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(ranked);
      std::partial_sort(begin, candidates_.begin() + static_cast<ptrdiff_t>(next), candidates_.end());
      ranked = next;
    }
    kept += candidates_[n++].weight;
    if (kept >= wanted) break;
  }
  candidates_.resize(n);
}

TokenId Sampler::draw(const DrawKey& key) const {
  CHECK(!candidates_.empty());
  double rest = uniform(key.seed, key.choice, key.position, 0) * total_weight(candidates_);
  for (const Candidate& c : candidates_) {
    rest -= c.weight;
    if (rest < 0) return TokenId(c.id);
  }
  return TokenId(candidates_.back().id);
}

TokenLogprob Sampler::logprob(std::span<const float> logits, TokenId token, int n_top) {
  const double log_sum = kernels_.log_sum_exp(logits.data(), static_cast<int>(logits.size()));
  const auto of = [&](int32_t id) { return static_cast<float>(logits[static_cast<size_t>(id)] - log_sum); };
  TokenLogprob result{.token = token, .bytes = {}, .logprob = of(token.value), .top = {}};
  if (n_top <= 0) return result;
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) candidates_.push_back({logits[id], static_cast<int32_t>(id), 0});
  const auto end = candidates_.begin() + std::min<ptrdiff_t>(n_top, static_cast<ptrdiff_t>(candidates_.size()));
  std::partial_sort(candidates_.begin(), end, candidates_.end());
  for (auto c = candidates_.begin(); c != end; ++c) result.top.push_back({TokenId(c->id), {}, of(c->id)});
  return result;
}

}  // namespace pagoda::engine
