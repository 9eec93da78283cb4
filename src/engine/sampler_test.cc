#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace pagoda::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kDraws = 20000;

// Logits whose probabilities at temperature 1 are 0.4 0.3 0.15 0.1 0.05, not in this order.
std::vector<float> five() {
  std::vector<float> logits;
  for (const double p : {0.1, 0.4, 0.05, 0.3, 0.15}) logits.push_back(static_cast<float>(std::log(p) + 3.0));
  return logits;
}

class SamplerTest : public ::testing::Test {
 protected:
  TokenId sample(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history = {},
                 std::span<const TokenId> banned = {}, DrawKey key = {.seed = 1, .choice = 0, .position = 0}) {
    return sampler_.sample({logits}, params, history, banned, key);
  }
  // Shares of kDraws positions.
  std::vector<double> shares(std::span<const float> logits, const SamplingParams& params,
                             const TokenHistory& history = {}, std::span<const TokenId> banned = {}) {
    std::vector<double> out(logits.size());
    for (uint32_t position = 0; position < kDraws; ++position) {
      const TokenId token = sample(logits, params, history, banned, {.seed = 99, .choice = 0, .position = position});
      out[static_cast<size_t>(token.value)] += 1.0 / kDraws;
    }
    return out;
  }
  // Every share within 4 standard deviations; what is 0 never comes.
  static void expect_shares(const std::vector<double>& found, std::vector<double> wanted) {
    const double total = std::accumulate(wanted.begin(), wanted.end(), 0.0);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double p = wanted[i] / total;
      EXPECT_NEAR(found[i], p, 4 * std::sqrt(p * (1 - p) / kDraws) + 1e-12) << "token " << i;
    }
  }

  Sampler sampler_{kernels::kernel_table(kernels::best_isa())};
};

TEST_F(SamplerTest, PlainDrawsFollowTheProbabilities) {
  expect_shares(shares(five(), {}), {0.1, 0.4, 0.05, 0.3, 0.15});
}

TEST_F(SamplerTest, TemperatureScalesLogits) {
  std::vector<double> wanted;
  for (const double p : {0.1, 0.4, 0.05, 0.3, 0.15}) wanted.push_back(std::pow(p, 1 / 0.5));
  expect_shares(shares(five(), {.temperature = 0.5f}), wanted);
}

TEST_F(SamplerTest, ZeroTemperatureAndTiesTakeTheLowestId) {
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(sample(five(), greedy), TokenId(1));
  EXPECT_EQ(sample(std::vector<float>{1, 5, 5, 2, 5}, greedy), TokenId(1));
  EXPECT_EQ(sample(std::vector<float>{1, 5, 5, 2, 5}, {.top_k = 1}), TokenId(1));
  EXPECT_EQ(sample(std::vector<float>{1, 5, 5, 2, 5}, {.top_p = 0}), TokenId(1));
}

TEST_F(SamplerTest, TopK) {
  expect_shares(shares(five(), {.top_k = 2}), {0, 0.4, 0, 0.3, 0});
  expect_shares(shares(five(), {.top_k = 100}), {0.1, 0.4, 0.05, 0.3, 0.15});
  expect_shares(shares(five(), {.top_k = -1}), {0.1, 0.4, 0.05, 0.3, 0.15});
}

TEST_F(SamplerTest, TopPKeepsTheFewestThatReachIt) {
  expect_shares(shares(five(), {.top_p = 0.69f}), {0, 0.4, 0, 0.3, 0});
  expect_shares(shares(five(), {.top_p = 0.75f}), {0, 0.4, 0, 0.3, 0.15});
  expect_shares(shares(five(), {.top_p = 0.01f}), {0, 1, 0, 0, 0});
}

TEST_F(SamplerTest, TopPOfManyTokensRanksInSteps) {
  const std::vector<float> logits(1000, 0.0f);  // all alike: the first half by id
  int32_t last = 0;
  for (uint32_t position = 0; position < 1000; ++position) {
    const TokenId token = sample(logits, {.top_p = 0.5f}, {}, {}, {.seed = 3, .choice = 0, .position = position});
    ASSERT_LT(token, TokenId(501));
    last = std::max(last, token.value);
  }
  EXPECT_GT(last, 480);
}

TEST_F(SamplerTest, MinPIsRelativeToTheLikeliest) {
  expect_shares(shares(five(), {.min_p = 0.3f}), {0, 0.4, 0, 0.3, 0.15});
  expect_shares(shares(five(), {.min_p = 1.0f}), {0, 1, 0, 0, 0});
}

// Entropy is 1.39 nats; information 2.30 0.92 3.00 1.20 1.90: the closest are tokens 3, 1, 4 ...
TEST_F(SamplerTest, TypicalPKeepsTheLeastSurprising) {
  expect_shares(shares(five(), {.typical_p = 0.2f}), {0, 0, 0, 1, 0});
  expect_shares(shares(five(), {.typical_p = 0.6f}), {0, 0.4, 0, 0.3, 0});
  expect_shares(shares(five(), {.typical_p = 0.8f}), {0, 0.4, 0, 0.3, 0.15});
}

TEST_F(SamplerTest, FiltersRunInTheDocumentedOrder) {
  // Temperature before min_p: at temperature 2 the ratios are roots, and 0.05 of 0.4 is above 0.3.
  EXPECT_GT(shares(five(), {.temperature = 2, .min_p = 0.3f})[2], 0);
  // min_p before top_p: without the tail 0.4 is 0.47 of the rest, which alone reaches 0.45.
  expect_shares(shares(five(), {.top_p = 0.45f, .min_p = 0.3f}), {0, 1, 0, 0, 0});
  EXPECT_GT(shares(five(), {.top_p = 0.45f})[3], 0);
  // top_k before top_p: of two, 0.4 is 0.57.
  expect_shares(shares(five(), {.top_p = 0.5f, .top_k = 2}), {0, 1, 0, 0, 0});
  // typical_p before top_p: token 3 alone is left, whatever is likelier.
  expect_shares(shares(five(), {.top_p = 0.1f, .typical_p = 0.2f}), {0, 0, 0, 1, 0});
  // top_k before typical_p: token 3 is gone first.
  expect_shares(shares(five(), {.typical_p = 0.2f, .top_k = 1}), {0, 1, 0, 0, 0});
}

TEST_F(SamplerTest, PenaltiesComeBeforeTemperature) {
  TokenHistory history;
  history.generated[TokenId(1)] = 2;
  history.seen[TokenId(1)] = 3;
  history.seen[TokenId(2)] = 1;
  const std::vector<float> logits{0.5f, 2.0f, -1.0f};
  const auto wanted = [](double a, double b, double c, double t) {
    return std::vector<double>{std::exp(a / t), std::exp(b / t), std::exp(c / t)};
  };
  // Presence once, frequency by count, over what was generated only.
  expect_shares(shares(logits, {.temperature = 0.7f, .presence_penalty = 0.3f, .frequency_penalty = 0.25f}, history),
                wanted(0.5, 2.0 - 0.3 - 0.5, -1.0, 0.7));
  // Repetition divides what is positive and multiplies what is negative, over all that was seen.
  expect_shares(shares(logits, {.temperature = 0.7f, .repetition_penalty = 1.6f}, history),
                wanted(0.5, 2.0 / 1.6, -1.6, 0.7));
  // Greedy too.
  EXPECT_EQ(sample(logits, {.temperature = 0, .repetition_penalty = 5.0f}, history), TokenId(0));
}

TEST_F(SamplerTest, BiasComesAfterPenaltiesAndBeforeFilters) {
  SamplingParams params{.top_k = 1, .logit_bias = {{TokenId(2), 100.0f}, {TokenId(1), -100.0f}}};
  EXPECT_EQ(sample(five(), params), TokenId(2));
  params = {.logit_bias = {{TokenId(1), -100.0f}}};
  expect_shares(shares(five(), params), {0.1, 0, 0.05, 0.3, 0.15});
  params.logit_bias = {{TokenId(77), 5.0f}, {TokenId(-1), 5.0f}};  // nothing of ours
  EXPECT_NO_FATAL_FAILURE(sample(five(), params));
}

TEST_F(SamplerTest, BannedTokensNeverCome) {
  const std::vector<TokenId> banned{TokenId(1), TokenId(3)};
  expect_shares(shares(five(), {}, {}, banned), {0.1, 0, 0.05, 0, 0.15});
  EXPECT_EQ(sample(five(), {.temperature = 0}, {}, banned), TokenId(4));
  const std::vector<TokenId> all{TokenId(0), TokenId(1), TokenId(2), TokenId(3), TokenId(4)};
  EXPECT_EQ(sample(five(), {}, {}, all), TokenId(0));
}

TEST_F(SamplerTest, MinusInfinityAndWideLogits) {
  expect_shares(shares(std::vector<float>{kMinusInfinity, 1, kMinusInfinity, 1}, {}), {0, 1, 0, 1});
  EXPECT_EQ(sample(std::vector<float>(4, kMinusInfinity), {}), TokenId(0));
  EXPECT_EQ(sample(std::vector<float>{0, 3e38f, -3e38f}, {}), TokenId(1));
  EXPECT_EQ(sample(five(), {.temperature = 1e-30f}), TokenId(1));
}

TEST_F(SamplerTest, DrawsDependOnSeedChoiceAndPositionOnly) {
  const std::vector<float> logits(1000, 0.0f);
  const auto at = [&](uint64_t seed, uint32_t choice, uint32_t position) {
    return sample(logits, {}, {}, {}, {.seed = seed, .choice = choice, .position = position});
  };
  const TokenId first = at(5, 0, 17);
  sample(five(), {.top_p = 0.5f});  // someone else's draw in between
  EXPECT_EQ(at(5, 0, 17), first);
  std::map<int32_t, int> seen;
  for (uint32_t i = 0; i < 50; ++i) {
    ++seen[at(5, i, 17).value];
    ++seen[at(5, 0, 100 + i).value];
    ++seen[at(1000 + i, 0, 17).value];
  }
  EXPECT_GT(seen.size(), 120u);
}

TEST_F(SamplerTest, PlainGreedy) {
  EXPECT_TRUE(is_plain_greedy({.temperature = 0}));
  EXPECT_TRUE(is_plain_greedy({.temperature = 0, .top_p = 0.5f, .top_k = 3}));
  EXPECT_FALSE(is_plain_greedy({}));
  EXPECT_FALSE(is_plain_greedy({.temperature = 0, .frequency_penalty = 0.1f}));
  EXPECT_FALSE(is_plain_greedy({.temperature = 0, .repetition_penalty = 1.1f}));
  EXPECT_FALSE(is_plain_greedy({.temperature = 0, .logit_bias = {{TokenId(1), 1.0f}}}));
}

TEST_F(SamplerTest, LogprobsAreOfTheRawLogits) {
  const TokenLogprob entry = sampler_.logprob({five()}, TokenId(2), 3);
  EXPECT_EQ(entry.token, TokenId(2));
  EXPECT_NEAR(*entry.logprob, std::log(0.05), 1e-5);
  ASSERT_EQ(entry.top.size(), 3u);
  EXPECT_EQ(entry.top[0].token, TokenId(1));
  EXPECT_EQ(entry.top[1].token, TokenId(3));
  EXPECT_EQ(entry.top[2].token, TokenId(4));
  EXPECT_NEAR(entry.top[1].logprob, std::log(0.3), 1e-5);
  EXPECT_TRUE(sampler_.logprob({five()}, TokenId(0), 0).top.empty());
  EXPECT_EQ(sampler_.logprob({five()}, TokenId(0), 50).top.size(), 5u);
}

}  // namespace
}  // namespace pagoda::engine
