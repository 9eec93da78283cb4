#include "tools/planner_generation.h"

#include <algorithm>
#include <numeric>

namespace pagoda::tools {
namespace {

void add_step(const ModelCosts& costs, StreamRows rows, const std::optional<MachineRates>& rates, GenerationWay& way) {
  const StepCost cost = step_cost(costs, {.streams = {rows}, .sampled_rows = 1, .shared_tokens = 0});
  const double weights = 2 * (rows.n_rows * std::accumulate(costs.body.begin(), costs.body.end(), 0.0) +
                              std::accumulate(costs.head.begin(), costs.head.end(), 0.0));
  way.weight_ops += weights;
  way.attention_ops += cost.operations() - weights;
  if (rates) way.seconds += limit_of(cost, *rates).seconds;
}

}  // namespace

std::vector<GenerationCost> generation_costs(const ModelCosts& costs, int embed_dim, const std::vector<int>& lengths,
                                             const std::optional<MachineRates>& rates) {
  std::vector<GenerationCost> out;
  GenerationCost sum;
  for (const int n_tokens : lengths) {
    for (; sum.n_tokens < n_tokens; ++sum.n_tokens) {
      add_step(costs, {.context = sum.n_tokens, .n_rows = 1}, rates, sum.cached);
      add_step(costs, {.context = 0, .n_rows = sum.n_tokens + 1}, rates, sum.uncached);
    }
    const double n = n_tokens;
    const double d = embed_dim;
    sum.cached.textbook = n * d * d + n * n * d;
    sum.uncached.textbook = n * n * d * d + n * n * n * d;
    out.push_back(sum);
  }
  return out;
}

std::vector<int> generation_lengths(int most) {
  most = std::min(most, kMostGenerated);
  std::vector<int> lengths;
  for (int64_t n = 1; n < most; n *= 4) lengths.push_back(static_cast<int>(n));
  lengths.push_back(most);
  return lengths;
}

}  // namespace pagoda::tools
