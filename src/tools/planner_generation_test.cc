#include "tools/planner_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::tools {
namespace {

// 1,000 weights in 500 bytes, one layer of 4 heads of 8.
ModelCosts small_costs() {
  ModelCosts costs;
  costs.body.front() = 1000;
  costs.body_bytes = 500;
  costs.n_heads = 4;
  costs.head_dim = 8;
  costs.kv = {{.n_layers = 1, .window = 0, .bytes_per_token = 16}};
  return costs;
}

TEST(PlannerGeneration, OperationsAreTheSumsOfTheSteps) {
  const auto costs = generation_costs(small_costs(), 32, {1, 10}, std::nullopt);
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs[0].cached.ops(), costs[0].uncached.ops());  // the first token is the same work
  const GenerationCost& ten = costs[1];
  EXPECT_EQ(ten.cached.weight_ops, 10 * 2 * 1000.0);
  EXPECT_EQ(ten.uncached.weight_ops, 55 * 2 * 1000.0);                // 1 + 2 + ... + 10 rows
  EXPECT_EQ(ten.cached.attention_ops, 55 * 2 * 2 * 32.0);             // q.k and P.V over 1, 2 ... 10 tokens
  EXPECT_EQ(ten.uncached.attention_ops, 220 * 2 * 2 * 32.0);          // the sum of those sums
  EXPECT_EQ(ten.cached.textbook, 10 * 32 * 32 + 10 * 10 * 32.0);      // N D^2 + N^2 D
  EXPECT_EQ(ten.uncached.textbook, 10 * 10 * 32 * 32 + 1000 * 32.0);  // N^2 D^2 + N^3 D
  EXPECT_EQ(ten.cached.seconds, 0);
}

TEST(PlannerGeneration, TimeIsWhatBindsEachStep) {
  MachineRates rates{.read_bytes_per_s = 100, .dots = {}};
  rates.dots.fill(1e18);
  const auto costs = generation_costs(small_costs(), 32, {4}, rates);
  EXPECT_DOUBLE_EQ(costs[0].cached.seconds, (4 * 500 + 16 * (1 + 2 + 3 + 4)) / 100.0);
  EXPECT_DOUBLE_EQ(costs[0].uncached.seconds, costs[0].cached.seconds);  // bytes are the same, operations are free
}

TEST(PlannerGeneration, AWindowBoundsAttention) {
  ModelCosts costs = small_costs();
  costs.kv.front().window = 2;
  const auto found = generation_costs(costs, 32, {10}, std::nullopt);
  EXPECT_EQ(found[0].cached.attention_ops, (1 + 9 * 2) * 2 * 2 * 32.0);
}

TEST(PlannerGeneration, LengthsEndWithTheMost) {
  EXPECT_THAT(generation_lengths(1), testing::ElementsAre(1));
  EXPECT_THAT(generation_lengths(16), testing::ElementsAre(1, 4, 16));
  EXPECT_THAT(generation_lengths(100), testing::ElementsAre(1, 4, 16, 64, 100));
  EXPECT_EQ(generation_lengths(1 << 28).back(), kMostGenerated);
}

}  // namespace
}  // namespace pagoda::tools
