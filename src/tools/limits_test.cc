#include "tools/limits.h"

#include <gtest/gtest.h>

namespace pagoda::tools {
namespace {

using kernels::DotKind;

constexpr size_t kI4 = static_cast<size_t>(DotKind::kInt4);
constexpr size_t kI8 = static_cast<size_t>(DotKind::kInt8);
constexpr size_t kF = static_cast<size_t>(DotKind::kF32);

// 1,000 weights of body in 500 bytes, 100 of head in 100; two layers of 4 heads of 8, one of them with a window of 10.
ModelCosts small_costs() {
  ModelCosts costs;
  costs.body[kI4] = 1000;
  costs.head[kI8] = 100;
  costs.body_bytes = 500;
  costs.head_bytes = 100;
  costs.n_heads = 4;
  costs.head_dim = 8;
  costs.kv = {{.n_layers = 1, .window = 0, .bytes_per_token = 16},
              {.n_layers = 1, .window = 10, .bytes_per_token = 16}};
  return costs;
}

MachineRates rates_of(double read, double int4, double int8, double f32) {
  MachineRates rates;
  rates.read_bytes_per_s = read;
  rates.dots[kI4] = int4;
  rates.dots[kI8] = int8;
  rates.dots[kF] = f32;
  return rates;
}

TEST(Limits, DecodeReadsWeightsAndItsContext) {
  const StepCost cost = step_cost(small_costs(), {.streams = {{.context = 99, .n_rows = 1}}, .sampled_rows = 1});
  EXPECT_EQ(cost.bytes, 500 + 100 + 100 * 16 + 10 * 16);
  EXPECT_EQ(cost.products[kI4], 1000);
  EXPECT_EQ(cost.products[kI8], 100 + (100 + 10) * 4 * 8);  // head and q.k
  EXPECT_EQ(cost.products[kF], (100 + 10) * 4 * 8);         // P.V
  EXPECT_EQ(cost.operations(), 2 * (1000 + 100 + 2 * 110 * 32));
}

TEST(Limits, PrefillSeesHalfOfItselfOnAverage) {
  const StepCost cost = step_cost(small_costs(), {.streams = {{.context = 0, .n_rows = 20}}});
  const double all = 20 * 21 / 2.0;
  const double windowed = 10 * 11 / 2.0 + 10 * 10;
  EXPECT_EQ(cost.products[kF], (all + windowed) * 32);
  EXPECT_EQ(cost.products[kI4], 20 * 1000);
  EXPECT_EQ(cost.bytes, 500 + 20 * 16 + 20 * 16);  // no row samples; the window moves over all of it
}

TEST(Limits, ChunksAddUpToTheWhole) {
  const ModelCosts costs = small_costs();
  const StepCost whole = step_cost(costs, {.streams = {{.context = 0, .n_rows = 40}}});
  StepCost sum;
  for (int at = 0; at < 40; at += 8) {
    const StepCost chunk = step_cost(costs, {.streams = {{.context = at, .n_rows = 8}}});
    for (size_t i = 0; i < sum.products.size(); ++i) sum.products[i] += chunk.products[i];
    sum.bytes += chunk.bytes;
  }
  EXPECT_EQ(sum.products, whole.products);
  EXPECT_GT(sum.bytes, whole.bytes);
}

TEST(Limits, ABatchReadsWeightsOnceAndASharedPrefixOnce) {
  const ModelCosts costs = small_costs();
  const StreamRows stream{.context = 99, .n_rows = 1};
  const StepCost one = step_cost(costs, {.streams = {stream}, .sampled_rows = 1});
  const StepCost four = step_cost(costs, {.streams = {stream, stream, stream, stream}, .sampled_rows = 4});
  EXPECT_EQ(four.bytes, one.bytes + 3 * (110 * 16));
  EXPECT_EQ(four.operations(), 4 * one.operations());
  const StepCost shared =
      step_cost(costs, {.streams = {stream, stream, stream, stream}, .sampled_rows = 4, .shared_tokens = 96});
  // Everything: 96 once and 4 each. Window of 10: 6 of the prefix once and 4 each.
  EXPECT_EQ(shared.bytes, 600 + (96 + 4 * 4) * 16 + (6 + 4 * 4) * 16);
  EXPECT_EQ(shared.operations(), four.operations());
}

TEST(Limits, TheSlowerOfReadingAndComputingIsTheLimit) {
  StepCost cost;
  cost.bytes = 1000;
  cost.products[kI4] = 500;
  cost.products[kF] = 100;
  const Limit reading = limit_of(cost, rates_of(1000, 1000, 1, 1000));  // 1 s of reading, 1 + 0.2 s of computing
  EXPECT_DOUBLE_EQ(reading.seconds, 1.2);
  EXPECT_EQ(reading.bound, Bound::kOperations);
  const Limit computing = limit_of(cost, rates_of(100, 1000, 1, 1000));
  EXPECT_DOUBLE_EQ(computing.seconds, 10);
  EXPECT_EQ(computing.bound, Bound::kBandwidth);
}

TEST(Limits, StepsAddUpAndTheLongerBoundNamesThem) {
  StepCost reading;
  reading.bytes = 1000;
  StepCost computing;
  computing.products[kF] = 1000;
  const MachineRates rates = rates_of(100, 1, 1, 1000);
  EXPECT_DOUBLE_EQ(limit_of(std::vector{reading, computing}, rates).seconds, 10 + 2);
  EXPECT_EQ(limit_of(std::vector{reading, computing}, rates).bound, Bound::kBandwidth);
  EXPECT_EQ(limit_of(std::vector(10, computing), rates).bound, Bound::kOperations);
}

}  // namespace
}  // namespace pagoda::tools
