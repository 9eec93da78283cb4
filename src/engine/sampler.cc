#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/random.h"

namespace pagoda::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// All of 262,144 tokens that are this far below the likeliest weigh 3e-9 of it.
constexpr float kNegligibleDepth = 32.0f;
// Candidates are gathered in bands of exponents until they suffice: what usually holds 0.9 of the mass, then step by step.
constexpr float kFirstDepth = 4.0f;
constexpr float kBandDepth = 2.0f;

double weight_of(auto begin, auto end) {
  double weight = 0;
  for (; begin != end; ++begin) weight += begin->weight;
  return weight;
}

}  // namespace

bool is_plain_greedy(const SamplingParams& params) {
  return params.temperature == 0 && params.repetition_penalty == 1 && params.presence_penalty == 0 &&
         params.frequency_penalty == 0 && params.logit_bias.empty();
}

TokenId Sampler::sample(const LogitsRow& row, const SamplingParams& params, const TokenHistory& history,
                        std::span<const TokenId> banned, const DrawKey& key) {
  row_.reset(row);
  adjust(params, history, banned);
  const kernels::LogitTile best = row_.largest();
  if (!(params.temperature > 0) || !std::isfinite(best.max)) return TokenId(best.index);
  softmax_ = {.max = best.max,
              .temperature = params.temperature,
              .inverse = std::min(1.0f / params.temperature, std::numeric_limits<float>::max())};
  const double position = uniform(key.seed, key.choice, key.position, 0);
  const bool unfiltered = params.min_p <= 0 && params.top_k <= 0 && params.typical_p >= 1 && params.top_p >= 1;
  if (unfiltered) return draw_from_row(position);
  Mass mass = gather(params);
  if (params.typical_p < 1) {
    keep_typical(params.typical_p, mass);
    mass = mass_of_candidates();
  }
  if (params.top_p < 1) keep_nucleus(params.top_p, mass);
  return draw_candidate(position);
}

void Sampler::adjust(const SamplingParams& params, const TokenHistory& history, std::span<const TokenId> banned) {
  if (params.repetition_penalty != 1) {
    for (const auto& [token, count] : history.seen) {
      float* logit = row_.edit(token);
      if (logit) *logit = *logit > 0 ? *logit / params.repetition_penalty : *logit * params.repetition_penalty;
    }
  }
  if (params.presence_penalty != 0 || params.frequency_penalty != 0) {
    for (const auto& [token, count] : history.generated) {
      float* logit = row_.edit(token);
      if (logit) *logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (float* logit = row_.edit(token)) *logit += bias;
  }
  for (const TokenId token : banned) {
    if (float* logit = row_.edit(token)) *logit = -kInfinity;
  }
  row_.finish();
}

// Temperature, min_p and top_k. Candidates become at least all tokens that the other filters may keep; the mass is that of all
// tokens these filters look at.
Sampler::Mass Sampler::gather(const SamplingParams& params) {
  candidates_.clear();
  last_band_ = 0;
  gathered_ = 0;
  least_weight_ = std::clamp(params.min_p, 0.0f, 1.0f);
  float depth = kNegligibleDepth;
  // A little deeper than the logarithm says: the weights decide.
  if (least_weight_ > 0) depth = std::min(depth, 0.01f - std::log(least_weight_));
  if (params.top_k > 0) {
    const auto k = static_cast<size_t>(params.top_k);
    const float reached = row_.reached_by(params.top_k);
    if (reached > -kInfinity) {
      gather_between(std::max(reached, softmax_.max - depth * softmax_.temperature), kInfinity);
    } else {
      gather_down(kFirstDepth, depth, [&] { return candidates_.size() >= k; });
    }
    keep_top(k);
    return mass_of_candidates();
  }
  if (least_weight_ > 0) {
    gather_down(depth, depth, [] { return true; });
    return mass_of_candidates();
  }
  const Mass all = weigh_row();
  if (params.typical_p < 1) {
    // As far below the typical exponent as that is below the largest: nothing above is left out.
    const auto first = static_cast<float>(-2 * all.exponent / all.weight);
    gather_down(first, depth, [&] { return gathered_ >= params.typical_p * all.weight; });
  } else {
    gather_down(kFirstDepth, depth, [&] { return gathered_ >= params.top_p * all.weight; });
  }
  return all;
}

// Bands of falling logits, until they are enough or `depth` is reached.
template <typename Enough>
void Sampler::gather_down(float first_depth, float depth, const Enough& enough) {
  float high = kInfinity;
  for (float reached = std::min(first_depth, depth);; reached = std::min(reached + kBandDepth, depth)) {
    const float low = softmax_.max - reached * softmax_.temperature;
    last_band_ = candidates_.size();
    gather_between(low, high);
    if (reached >= depth || enough()) return;
    high = low;
  }
}

void Sampler::gather_between(float low, float high) {
  const size_t first = candidates_.size();
  find_between(low, high);
  weigh_from(first);
}

// Appends them without their weights.
void Sampler::find_between(float low, float high) {
  for (int i = 0; i < row_.n_tiles(); ++i) {
    if (row_.tile_max(i) < low) continue;
    const std::span<const float> tile = row_.tile(i);
    const int32_t base = EditedLogits::first_id(i);
    const int found = kernels_.find_between(tile.data(), static_cast<int>(tile.size()), low, high, base, ids_);
    for (const int32_t id : std::span(ids_).first(static_cast<size_t>(found))) {
      candidates_.push_back({.logit = tile[static_cast<size_t>(id - base)], .weight = 0, .id = id});
    }
  }
}

// Weights of the candidates from `first` on; those that can never be drawn go.
void Sampler::weigh_from(size_t first) {
  const size_t end = candidates_.size();
  size_t kept = first;
  for (size_t begin = first; begin < end; begin += std::size(values_)) {
    const size_t n = std::min(std::size(values_), end - begin);
    for (size_t i = 0; i < n; ++i) values_[i] = candidates_[begin + i].logit;
    kernels_.exp_sums(values_, static_cast<int>(n), softmax_.max, softmax_.inverse, values_);
    for (size_t i = 0; i < n; ++i) {
      if (values_[i] == 0 || values_[i] < least_weight_) continue;
      candidates_[kept] = candidates_[begin + i];
      candidates_[kept++].weight = values_[i];
      gathered_ += values_[i];
    }
  }
  candidates_.resize(kept);
}

Sampler::Mass Sampler::weigh_row() {
  Mass mass;
  tile_weights_.assign(static_cast<size_t>(row_.n_tiles()), 0.0f);
  for (int i = 0; i < row_.n_tiles(); ++i) {
    if (softmax_.exponent(row_.tile_max(i)) < -kNegligibleDepth) continue;
    const std::span<const float> tile = row_.tile(i);
    const kernels::ExpSums sums =
        kernels_.exp_sums(tile.data(), static_cast<int>(tile.size()), softmax_.max, softmax_.inverse, values_);
    tile_weights_[static_cast<size_t>(i)] = sums.mass;
    mass.weight += sums.mass;
    mass.exponent += sums.exponent;
  }
  return mass;
}

Sampler::Mass Sampler::mass_of_candidates() const {
  Mass mass;
  for (const Candidate& c : candidates_) {
    mass.weight += c.weight;
    mass.exponent += static_cast<double>(c.weight) * softmax_.exponent(c.logit);
  }
  return mass;
}

void Sampler::keep_top(size_t n) {
  if (n >= candidates_.size()) {
    last_band_ = 0;
    return;
  }
  const auto band = candidates_.begin() + static_cast<ptrdiff_t>(last_band_);
  ranked_.assign(band, candidates_.end());
  const auto last = ranked_.begin() + static_cast<ptrdiff_t>(n - last_band_ - 1);
  std::nth_element(ranked_.begin(), last, ranked_.end());
  erase_from_last_band([&](const Candidate& c) { return *last < c; });
}

template <typename Unwanted>
void Sampler::erase_from_last_band(const Unwanted& unwanted) {
  const auto band = candidates_.begin() + static_cast<ptrdiff_t>(last_band_);
  candidates_.erase(std::remove_if(band, candidates_.end(), unwanted), candidates_.end());
  last_band_ = 0;
}

// The tokens whose information is closest to the distribution's entropy, up to a total probability of typical_p. Information is
// log(mass) - exponent and entropy its mean, so their distance is the exponent's distance from the mean exponent.
void Sampler::keep_typical(float typical_p, const Mass& of) {
  const auto mean = static_cast<float>(of.exponent / of.weight);
  keep_first(typical_p * of.weight, [&](const Candidate& c) { return std::abs(softmax_.exponent(c.logit) - mean); });
}

// The most likely tokens up to a total probability of top_p.
void Sampler::keep_nucleus(float top_p, const Mass& of) {
  keep_first(top_p * of.weight, [&](const Candidate& c) { return -softmax_.exponent(c.logit); });
}

// Keeps the fewest first candidates, by rising key and then as likely as they are, that weigh `wanted` together, but at least one
// of the last band: the bands before it come first in that order and do not suffice. Linear: the bucket of keys where the weight
// is reached is found first, and only that is ranked.
template <typename Key>
void Sampler::keep_first(double wanted, const Key& key) {
  const auto band = candidates_.begin() + static_cast<ptrdiff_t>(last_band_);
  if (band == candidates_.end()) {
    last_band_ = 0;
    return;
  }
  constexpr int kBuckets = 256;
  float low = kInfinity, high = -kInfinity;
  for (auto c = band; c != candidates_.end(); ++c) {
    low = std::min(low, key(*c));
    high = std::max(high, key(*c));
  }
  const float per_key = high > low ? (kBuckets - 1) / (high - low) : 0.0f;
  const auto bucket_of = [&](float k) { return static_cast<int>((k - low) * per_key); };
  double weights[kBuckets] = {};
  for (auto c = band; c != candidates_.end(); ++c) weights[bucket_of(key(*c))] += c->weight;
  double kept = weight_of(candidates_.begin(), band);
  int bucket = 0;
  for (; bucket < bucket_of(high) && kept + weights[bucket] < wanted; ++bucket) kept += weights[bucket];

  ranked_.clear();
  std::copy_if(band, candidates_.end(), std::back_inserter(ranked_),
               [&](const Candidate& c) { return bucket_of(key(c)) == bucket; });
  const auto before = [&](const Candidate& a, const Candidate& b) {
    const float ka = key(a), kb = key(b);
    return ka != kb ? ka < kb : a < b;
  };
  std::sort(ranked_.begin(), ranked_.end(), before);
  auto last = ranked_.begin();
  for (; last + 1 < ranked_.end() && kept + last->weight < wanted; ++last) kept += last->weight;
  erase_from_last_band([&](const Candidate& c) { return before(*last, c); });
}

TokenId Sampler::draw_candidate(double uniform) const {
  CHECK(!candidates_.empty());
  double rest = uniform * weight_of(candidates_.begin(), candidates_.end());
  for (const Candidate& c : candidates_) {
    rest -= c.weight;
    if (rest < 0) return TokenId(c.id);
  }
  return TokenId(candidates_.back().id);
}

// The tile by its share of the mass, then the token in it.
TokenId Sampler::draw_from_row(double uniform) {
  double rest = uniform * weigh_row().weight;
  int chosen = 0;
  for (int i = 0; i < row_.n_tiles(); ++i) {
    const double weight = tile_weights_[static_cast<size_t>(i)];
    if (weight == 0) continue;
    chosen = i;
    if (rest < weight) break;
    rest -= weight;
  }
  const std::span<const float> tile = row_.tile(chosen);
  kernels_.exp_sums(tile.data(), static_cast<int>(tile.size()), softmax_.max, softmax_.inverse, values_);
  int32_t id = 0;
  for (size_t i = 0; i < tile.size(); ++i) {
    if (values_[i] == 0) continue;
    id = EditedLogits::first_id(chosen) + static_cast<int32_t>(i);
    rest -= values_[i];
    if (rest < 0) break;
  }
  return TokenId(id);
}

TokenLogprob Sampler::logprob(const LogitsRow& row, TokenId token, int n_top) {
  const std::span<const float> logits = row.logits;
  const double log_sum = kernels_.log_sum_exp(logits.data(), static_cast<int>(logits.size()));
  const auto of = [&](int32_t id) { return static_cast<float>(logits[static_cast<size_t>(id)] - log_sum); };
  TokenLogprob result{.token = token, .bytes = {}, .logprob = of(token.value), .top = {}};
  if (n_top <= 0) return result;
  row_.reset(row);
  candidates_.clear();
  find_between(row_.reached_by(n_top), kInfinity);
  const auto end = candidates_.begin() + std::min<ptrdiff_t>(n_top, static_cast<ptrdiff_t>(candidates_.size()));
  std::partial_sort(candidates_.begin(), end, candidates_.end());
  for (auto c = candidates_.begin(); c != end; ++c) result.top.push_back({TokenId(c->id), {}, of(c->id)});
  return result;
}

}  // namespace pagoda::engine
