// run_bench: a plan of works through a real Engine in this process, the path that requests take when served, each beside its limit.
// Prompts are random token ids of a fixed seed; every run has a cache salt of its own, so nothing is answered from a cache unless the work
// is about that. Answers are greedy and never stop early.     Threads: one caller; the engine has its own.
// Errors: what loading a model or a request can say.     Cost: minutes for everything on a small model, seconds for Thoroughness::kQuick.
#pragma once

#include <functional>
#include <string_view>

#include "engine/config.h"
#include "tools/bench_result.h"
#include "tools/bench_work.h"

namespace pagoda::tools {

struct BenchPlan {
  std::vector<BenchWork> works;
  int repeats = 3;
  int accuracy_tokens = 512;
};

// Called before each piece: the share that is done, in [0, 1), and what comes now.
using BenchProgress = std::function<void(double done, std::string_view what)>;

// setup.pagoda, unix_s and effort are left to the caller.
Result<BenchResult> run_bench(const engine::EngineConfig& config, const BenchPlan& plan, const BenchProgress& progress);

}  // namespace pagoda::tools
