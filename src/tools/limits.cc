#include "tools/limits.h"

#include <algorithm>
#include <numeric>

namespace pagoda::tools {
namespace {

// Tokens that the rows see, summed over the rows: row i sees min(context + i + 1, window).
double visible_tokens(StreamRows rows, int window) {
  const double n = rows.n_rows;
  const double first = rows.context + 1.0;
  const double all = n * first + n * (n - 1) / 2;
  if (window == 0 || first + n - 1 <= window) return all;
  const double below = std::clamp(window - first + 1, 0.0, n);  // rows whose whole past fits the window
  return below * first + below * (below - 1) / 2 + (n - below) * window;
}

// Tokens of which any row reads K and V.
double read_tokens(StreamRows rows, int window) {
  const double all = static_cast<double>(rows.context) + rows.n_rows;
  return window == 0 ? all : std::min(all, static_cast<double>(window) + rows.n_rows - 1);
}

// Of one stream's reads, those that the other streams share with it.
double shared_tokens(StreamRows rows, int window, int shared) {
  const double own = rows.context + static_cast<double>(rows.n_rows) - shared;
  return std::max(0.0, read_tokens(rows, window) - std::max(0.0, own));
}

void add_attention(const ModelCosts& costs, const ModelCosts::KvLayers& layers, const StepLoad& load, StepCost& cost) {
  double visible = 0;
  double read = 0;
  double shared_once = 0;
  for (const StreamRows rows : load.streams) {
    const double shared = load.shared_tokens > 0 ? shared_tokens(rows, layers.window, load.shared_tokens) : 0;
    visible += visible_tokens(rows, layers.window);
    read += read_tokens(rows, layers.window) - shared;
    shared_once = std::max(shared_once, shared);
  }
  cost.bytes += (read + shared_once) * layers.bytes_per_token;
  const double products = visible * layers.n_layers * costs.n_heads * costs.head_dim;
  cost.products[static_cast<size_t>(layers.qk)] += products;
  cost.products[static_cast<size_t>(layers.pv)] += products;
}

double operation_seconds(const StepCost& cost, const DotRates& rates) {
  double seconds = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    if (cost.products[i] > 0 && rates[i] > 0) seconds += 2 * cost.products[i] / rates[i];
  }
  return seconds;
}

}  // namespace

double ModelCosts::kv_bytes_per_token() const {
  double bytes = 0;
  for (const KvLayers& layers : kv) bytes += layers.bytes_per_token;
  return bytes;
}

double StepCost::operations() const { return 2 * std::accumulate(products.begin(), products.end(), 0.0); }

StepCost step_cost(const ModelCosts& costs, const StepLoad& load) {
  double n_rows = 0;
  for (const StreamRows rows : load.streams) n_rows += rows.n_rows;
  StepCost cost;
  cost.bytes = costs.body_bytes + (load.sampled_rows > 0 ? costs.head_bytes : 0);
  for (size_t i = 0; i < cost.products.size(); ++i)
    cost.products[i] = n_rows * costs.body[i] + load.sampled_rows * costs.head[i];
  for (const ModelCosts::KvLayers& layers : costs.kv) add_attention(costs, layers, load, cost);
  return cost;
}

Limit limit_of(const StepCost& cost, const MachineRates& rates) {
  const double read_s = rates.read_bytes_per_s > 0 ? cost.bytes / rates.read_bytes_per_s : 0;
  const double compute_s = operation_seconds(cost, rates.dots);
  return read_s >= compute_s ? Limit{read_s, Bound::kBandwidth} : Limit{compute_s, Bound::kOperations};
}

Limit limit_of(const std::vector<StepCost>& steps, const MachineRates& rates) {
  double by_bound[2] = {};
  for (const StepCost& step : steps) {
    const Limit limit = limit_of(step, rates);
    by_bound[static_cast<size_t>(limit.bound)] += limit.seconds;
  }
  return {by_bound[0] + by_bound[1], by_bound[0] >= by_bound[1] ? Bound::kBandwidth : Bound::kOperations};
}

}  // namespace pagoda::tools
