// A plan beside reality: a model is loaded, and what it takes and does is measured.
// Threads: one caller.     Errors: what loading a model or a request can say.     Cost: loading, and some seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config.h"
#include "tools/planner.h"

namespace pagoda::tools {

// The share that is done, in [0, 1), and what comes.
using PlanProgress = std::function<void(double done, std::string_view what)>;

// One figure as planned, as measured, and the range that the measured one must lie in.
struct VerifiedFigure {
  std::string what;
  uint64_t planned_bytes = 0;
  uint64_t measured_bytes = 0;
  uint64_t low_bytes = 0;
  uint64_t high_bytes = 0;

  bool agrees() const { return low_bytes <= measured_bytes && measured_bytes <= high_bytes; }
};
inline constexpr double kResidentTolerance =
    0.03;  // of weights, KV and overhead together; at least weights and KV are resident

// Loads the model as `config` says and runs one sequence to the plan's context: its weights and KV blocks must be the plan's to the byte, and
// resident memory within kResidentTolerance.  Requires a plan of the config's model and format.
Result<std::vector<VerifiedFigure>> verify_plan(const engine::EngineConfig& config, const Plan& plan,
                                                const PlanProgress& progress);

// Generation of n_tokens after a prompt of one token, with the cache and without: the shorter of two runs.
struct MeasuredGeneration {
  int n_tokens = 0;
  double cached_s = 0;
  double uncached_s = 0;
  bool same_tokens = true;
};
// For 8, 16, 32 ... tokens, as long as a run without a cache takes no more than about two seconds.
Result<std::vector<MeasuredGeneration>> measure_generation(engine::EngineConfig config, const PlanProgress& progress);

// Bandwidth and operations of this machine in less than a second, at a working set of `working_bytes`.
Result<MachineRates> measure_rates(kernels::Isa isa, int n_threads, uint64_t working_bytes);

}  // namespace pagoda::tools
