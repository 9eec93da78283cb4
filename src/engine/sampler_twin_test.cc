// Sampler over vocabularies of several tiles, against its slow twin: the definition in double over a copy of the row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/random.h"
#include "engine/sampler.h"

namespace pagoda::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kVocab = 5 * kernels::kLogitsTile + 77;
constexpr uint32_t kDraws = 2000;

enum class Shape : uint8_t { kPeaked, kFlat, kTied };

std::vector<float> make_logits(Shape shape) {
  std::vector<float> logits(kVocab);
  for (uint32_t i = 0; i < logits.size(); ++i) {
    double sum = -6;
    for (uint32_t draw = 0; draw < 12; ++draw) sum += uniform(7, 0, i, draw);
    logits[i] = static_cast<float>(2.0 * sum);
    if (shape == Shape::kTied) logits[i] = std::round(logits[i]);
  }
  if (shape != Shape::kPeaked) return logits;
  for (size_t rank = 1; rank <= 30; ++rank) {
    logits[rank * 997 % kVocab] = 14 - 2 * std::log(static_cast<float>(rank));
  }
  return logits;
}

// 400 tokens, the likeliest first of all.
TokenHistory make_history(const std::vector<float>& logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::sort(ids, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  TokenHistory history;
  for (int i = 0; i < 400; ++i) {
    const TokenId token(i < 10 ? ids[static_cast<size_t>(i)] : i * 12);
    history.seen[token] = 1;
    if (i % 3 == 0) history.generated[token] = 1 + i % 2;
  }
  return history;
}

std::vector<float> adjusted(std::vector<float> logits, const SamplingParams& params, const TokenHistory& history,
                            std::span<const TokenId> banned) {
  const auto at = [&](TokenId token) -> float& { return logits[static_cast<size_t>(token.value)]; };
  if (params.repetition_penalty != 1) {
    for (const auto& [token, count] : history.seen) {
      at(token) = at(token) > 0 ? at(token) / params.repetition_penalty : at(token) * params.repetition_penalty;
    }
  }
  for (const auto& [token, count] : history.generated) {
    at(token) -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
  for (const auto& [token, bias] : params.logit_bias) at(token) += bias;
  for (const TokenId token : banned) at(token) = kMinusInfinity;
  return logits;
}

// The first ids, in this order, whose probabilities reach `wanted` of their total; the others' become 0.
void keep_first(std::vector<double>& p, const std::vector<size_t>& order, double wanted) {
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  double kept = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && kept >= wanted * total) {
      p[order[i]] = 0;
    } else {
      kept += p[order[i]];
    }
  }
}

// Each token's probability of being drawn.
std::vector<double> probabilities(const std::vector<float>& logits, const SamplingParams& params) {
  const double max = *std::ranges::max_element(logits);
  std::vector<double> p(logits.size());
  for (size_t i = 0; i < p.size(); ++i) p[i] = std::exp((logits[i] - max) / params.temperature);
  for (double& weight : p) weight = weight < params.min_p ? 0 : weight;
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::ranges::sort(order, likelier);
  if (params.top_k > 0) {
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) p[order[i]] = 0;
  }
  if (params.typical_p < 1) {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    double entropy = 0;
    for (const double weight : p) entropy -= weight > 0 ? weight / total * std::log(weight / total) : 0;
    std::vector<size_t> typical;
    std::ranges::copy_if(order, std::back_inserter(typical), [&](size_t i) { return p[i] > 0; });
    const auto distance = [&](size_t i) { return std::abs(-std::log(p[i] / total) - entropy); };
    std::ranges::sort(typical, [&](size_t a, size_t b) {
      return distance(a) != distance(b) ? distance(a) < distance(b) : likelier(a, b);
    });
    keep_first(p, typical, params.typical_p);
  }
  if (params.top_p < 1) keep_first(p, order, params.top_p);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& weight : p) weight /= total;
  return p;
}

// Pearson's statistic over runs of ids with at least 15 expected draws each, within 5 standard deviations of its mean.
void expect_distribution(const std::vector<int>& drawn, const std::vector<double>& p) {
  double statistic = 0, expected = 0, found = 0;
  int n_bins = 0;
  int n_outside = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0 && drawn[i] > 0) ++n_outside;
    expected += p[i] * kDraws;
    found += drawn[i];
    if (expected < 15 && i + 1 < p.size()) continue;
    if (expected > 0) statistic += (found - expected) * (found - expected) / expected;
    ++n_bins;
    expected = found = 0;
  }
  EXPECT_LE(n_outside, 1) << "where rounding decides, one token more than in double may stay";
  EXPECT_LT(statistic, n_bins + 5 * std::sqrt(2.0 * n_bins)) << n_bins << " bins";
}

struct Case {
  const char* name;
  SamplingParams params;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const Case kCases[] = {
    {"plain", {}},
    {"warm", {.temperature = 1.7f}},
    {"cold", {.temperature = 0.2f}},
    {"top_p", {.top_p = 0.9f}},
    {"all_but_the_last_of_top_p", {.top_p = 0.99999f}},
    {"top_k_of_few_tiles", {.top_k = 3}},
    {"top_k_of_many", {.top_k = 700}},
    {"top_k_top_p", {.top_p = 0.8f, .top_k = 60}},
    {"min_p", {.min_p = 0.02f}},
    {"min_p_top_k_top_p", {.temperature = 1.3f, .top_p = 0.9f, .min_p = 0.01f, .top_k = 200}},
    {"typical", {.typical_p = 0.8f}},
    {"typical_top_p", {.top_p = 0.7f, .typical_p = 0.9f}},
    {"top_k_typical", {.typical_p = 0.6f, .top_k = 500}},
    {"penalties", {.top_p = 0.9f, .repetition_penalty = 1.3f, .presence_penalty = 0.4f, .frequency_penalty = 0.3f}},
    {"bias", {.top_k = 50, .logit_bias = {{TokenId(4000), 9.0f}, {TokenId(17), 8.0f}}}},
};

class SamplerTwinTest : public ::testing::TestWithParam<Case> {};

TEST_P(SamplerTwinTest, DrawsFollowTheProbabilities) {
  Sampler sampler(kernels::kernel_table(kernels::best_isa()));
  const std::vector<TokenId> banned{TokenId(997), TokenId(5000)};
  for (const Shape shape : {Shape::kPeaked, Shape::kFlat, Shape::kTied}) {
    SCOPED_TRACE(static_cast<int>(shape));
    const std::vector<float> logits = make_logits(shape);
    const TokenHistory history = make_history(logits);
    std::vector<int> drawn(kVocab);
    for (uint32_t position = 0; position < kDraws; ++position) {
      const TokenId token =
          sampler.sample({logits}, GetParam().params, history, banned, {.seed = 5, .choice = 0, .position = position});
      ++drawn[static_cast<size_t>(token.value)];
    }
    expect_distribution(drawn, probabilities(adjusted(logits, GetParam().params, history, banned), GetParam().params));
  }
}

TEST_P(SamplerTwinTest, EveryInstructionSetDrawsTheSame) {
  for (const Shape shape : {Shape::kPeaked, Shape::kFlat, Shape::kTied}) {
    const std::vector<float> logits = make_logits(shape);
    const TokenHistory history = make_history(logits);
    std::vector<std::vector<TokenId>> drawn;
    for (const kernels::Isa isa : kernels::supported_isas()) {
      const kernels::KernelTable& kernels = kernels::kernel_table(isa);
      std::vector<kernels::LogitTile> tiles((kVocab + kernels::kLogitsTile - 1) / kernels::kLogitsTile);
      kernels.logit_tiles(logits.data(), static_cast<int>(kVocab), tiles.data());
      Sampler sampler(kernels);
      std::vector<TokenId>& tokens = drawn.emplace_back();
      for (uint32_t position = 0; position < 60; ++position) {
        const DrawKey key{.seed = 6, .choice = 0, .position = position};
        tokens.push_back(sampler.sample({logits, tiles}, GetParam().params, history, {}, key));
        EXPECT_EQ(sampler.sample({logits}, GetParam().params, history, {}, key), tokens.back());
      }
      EXPECT_EQ(tokens, drawn.front()) << kernels::to_string(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SamplerTwinTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// A plain draw is the inverse of the cumulative distribution at the key's random number.
TEST(SamplerTileTest, PlainDrawsInvertTheDistribution) {
  Sampler sampler(kernels::kernel_table(kernels::best_isa()));
  const std::vector<float> logits = make_logits(Shape::kFlat);
  const std::vector<double> p = probabilities(logits, {});
  for (uint32_t position = 0; position < 500; ++position) {
    const TokenId token = sampler.sample({logits}, {}, {}, {}, {.seed = 8, .choice = 2, .position = position});
    const double u = uniform(8, 2, position, 0);
    const double below = std::accumulate(p.begin(), p.begin() + token.value, 0.0);
    EXPECT_GE(u, below - 1e-6);
    EXPECT_LE(u, below + p[static_cast<size_t>(token.value)] + 1e-6);
  }
}

TEST(SamplerTileTest, GreedyIsTheFirstLargestOfAllTiles) {
  Sampler sampler(kernels::kernel_table(kernels::best_isa()));
  std::vector<float> logits(kVocab, 0.0f);
  logits[4500] = logits[3000] = logits[5000] = 2.0f;
  EXPECT_EQ(sampler.sample({logits}, {.temperature = 0}, {}, {}, {}), TokenId(3000));
  EXPECT_EQ(sampler.sample({logits}, {.top_k = 1}, {}, {}, {}), TokenId(3000));
  const std::vector<TokenId> banned{TokenId(3000)};
  EXPECT_EQ(sampler.sample({logits}, {.temperature = 0}, {}, banned, {}), TokenId(4500));
  EXPECT_EQ(sampler.sample({logits}, {.temperature = 0, .logit_bias = {{TokenId(1), 2.5f}}}, {}, banned, {}),
            TokenId(1));
}

// What a broken file can make a model say.
TEST(SamplerTileTest, WhatIsNotANumberIsNeverDrawn) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Sampler sampler(kernels::kernel_table(kernels::best_isa()));
  std::vector<float> logits(kVocab, kNaN);
  const std::set<int32_t> numbers{5, 1030, 5100};
  for (const int32_t id : numbers) logits[static_cast<size_t>(id)] = 1.0f;
  const std::vector<float> nothing(kVocab, kNaN), infinite(kVocab, std::numeric_limits<float>::infinity());
  for (const Case& c : kCases) {
    for (uint32_t position = 0; position < 20; ++position) {
      const DrawKey key{.seed = 1, .choice = 0, .position = position};
      EXPECT_TRUE(numbers.contains(sampler.sample({logits}, c.params, {}, {}, key).value)) << c.name;
      sampler.sample({nothing}, c.params, {}, {}, key);
      sampler.sample({infinite}, c.params, {}, {}, key);
    }
  }
  EXPECT_EQ(sampler.logprob({logits}, TokenId(5), 20).top.size(), 3u);
}

TEST(SamplerTileTest, ExtremeParametersDrawSomething) {
  Sampler sampler(kernels::kernel_table(kernels::best_isa()));
  std::vector<float> logits = make_logits(Shape::kTied);
  logits[3] = std::numeric_limits<float>::lowest();
  constexpr float kTiny = std::numeric_limits<float>::min(), kHuge = std::numeric_limits<float>::max();
  for (const float temperature : {kTiny, 1e-30f, 1e30f, kHuge}) {
    for (const float p : {0.0f, kTiny, 0.5f, 0.99999994f}) {
      for (const int top_k : {0, 1, 6, 7, 100000}) {
        const SamplingParams params[] = {{.temperature = temperature, .top_p = p, .top_k = top_k},
                                         {.temperature = temperature, .min_p = p, .top_k = top_k},
                                         {.temperature = temperature, .typical_p = p, .top_k = top_k}};
        for (const SamplingParams& each : params) {
          const TokenId token = sampler.sample({logits}, each, {}, {}, {.seed = 3, .choice = 0, .position = 1});
          EXPECT_GE(token.value, 0);
          EXPECT_LT(token.value, static_cast<int32_t>(kVocab));
        }
      }
    }
  }
}

TEST(SamplerTileTest, TopLogprobsAreTheLargest) {
  Sampler sampler(kernels::kernel_table(kernels::best_isa()));
  const std::vector<float> logits = make_logits(Shape::kTied);
  std::vector<int32_t> ids(kVocab);
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::sort(ids, [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (const int n_top : {1, 5, 6, 7, 20, 3000, static_cast<int>(kVocab) + 5}) {
    const TokenLogprob entry = sampler.logprob({logits}, TokenId(77), n_top);
    ASSERT_EQ(entry.top.size(), std::min<size_t>(static_cast<size_t>(n_top), kVocab));
    for (size_t i = 0; i < entry.top.size(); ++i) ASSERT_EQ(entry.top[i].token, TokenId(ids[i]));
  }
}

}  // namespace
}  // namespace pagoda::engine
