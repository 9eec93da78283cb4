// Limits: the least time that a piece of work can take on a machine of given rates (design: speed), and what it moves and computes.
//   a step takes at least max(bytes read / bandwidth, operations / their rates)
//   bytes       the body's weights once, the head's if a row samples, K and V of every token that a row sees (a shared one once)
//   operations  2 per weight and row; 2 * head_dim per query head and visible token for q.k, and for P.V
// What the formulas leave out makes them too hopeful, never too strict: dequantization, activations, norms, softmax, sampling, barriers.
// Pure functions of plain data.     Units: seconds, bytes, operations (a product and its addition are two), tokens.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tools/machine_probe.h"

namespace pagoda::tools {

using DotProducts = std::array<double, kernels::kDotKinds>;  // weights, by what multiplies them

// What one model costs in one arithmetic and KV format (model_costs.h).
struct ModelCosts {
  DotProducts body{};  // per row
  DotProducts head{};  // per row that samples
  double body_bytes = 0;
  double head_bytes = 0;
  int n_heads = 0;
  int head_dim = 0;
  // Layers of one window and format.
  struct KvLayers {
    int n_layers = 0;
    int window = 0;              // tokens a query sees, itself included; 0: all
    double bytes_per_token = 0;  // of all n_layers
    kernels::DotKind qk = kernels::DotKind::kInt8;
    kernels::DotKind pv = kernels::DotKind::kF32;
  };
  std::vector<KvLayers> kv;

  double kv_bytes_per_token() const;
};

// One sequence's part of a step: n_rows new tokens after `context` cached ones.
struct StreamRows {
  int context = 0;
  int n_rows = 0;
};
struct StepLoad {
  std::vector<StreamRows> streams;
  int sampled_rows = 0;
  int shared_tokens = 0;  // the first tokens of every stream's context are the same blocks: read once
};

struct StepCost {
  double bytes = 0;
  DotProducts products{};  // by kind; attention's too

  double operations() const;
};
StepCost step_cost(const ModelCosts& costs, const StepLoad& load);

struct MachineRates {
  double read_bytes_per_s = 0;  // at the work's own working-set size
  DotRates dots{};
};

enum class Bound : uint8_t { kBandwidth, kOperations };
struct Limit {
  double seconds = 0;
  Bound bound = Bound::kBandwidth;
};
Limit limit_of(const StepCost& cost, const MachineRates& rates);
// Steps one after another; `bound` is of those that take most of the time.
Limit limit_of(const std::vector<StepCost>& steps, const MachineRates& rates);

}  // namespace pagoda::tools
