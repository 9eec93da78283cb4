// What a scheduler turn costs with no model behind it: n sequences decoding, one new block per sequence every 32 steps.
#include "sched/scheduler.h"

#include <benchmark/benchmark.h>

namespace pagoda::sched {
namespace {

void decode_step(benchmark::State& state) {
  const auto n_sequences = static_cast<uint64_t>(state.range(0));
  kv::BlockPool pool({.budget_bytes = size_t{1} << 40, .extent_bytes = size_t{4} << 20});
  kv::Cache cache(pool, kv::ModelId(0), std::vector<kv::GroupSpec>{{.block_bytes = 380160}});
  const SteadyClock clock;
  const Fcfs policy;
  const SchedConfig config{
      .step_tokens = 1 << 20, .max_logits = (1 << 20) + 1, .max_running = 1 << 20, .max_waiting = 1 << 20};
  Scheduler scheduler(config, clock, policy);
  scheduler.add_model(cache);
  for (uint64_t i = 0; i < n_sequences; ++i) {
    if (!scheduler.submit({.id = SeqId(i + 1), .model = cache.model(), .prompt = {TokenId(1), TokenId(2)}})) return;
  }
  StepPlan plan;
  std::vector<StepOutcome> outcomes(n_sequences, {StepOutcome::Kind::kSampled, TokenId(7)});
  for (auto _ : state) {
    scheduler.next_step(plan);
    scheduler.commit_step(plan, outcomes);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(n_sequences));
}
BENCHMARK(decode_step)->Arg(1)->Arg(16)->Arg(256)->Arg(4096)->Iterations(2000);

}  // namespace
}  // namespace pagoda::sched
