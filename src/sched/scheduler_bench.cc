// What a scheduler turn and a short request cost with no model behind them: over sequences that decode, and beside 10^3 to 10^6 blocks
// that are cached.
#include "sched/scheduler.h"

#include <benchmark/benchmark.h>

#include <random>

namespace pagoda::sched {
namespace {

// n sequences decoding, one new block per sequence every 32 steps.
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

// A pool that is full of cached blocks: whoever needs one evicts one.
class FullCache {
 public:
  explicit FullCache(size_t n_blocks)
      : pool_({.budget_bytes = n_blocks * kBlockBytes + (1 << 16), .extent_bytes = 1 << 16}) {
    scheduler_.add_model(cache_);
    while (index_.stats().evicted_for_room == 0) serve(new_prompt(32 * kv::kBlockTokens), 1);
  }

  std::vector<TokenId> new_prompt(int n_tokens) {
    std::vector<TokenId> prompt;
    for (int i = 0; i < n_tokens; ++i) prompt.push_back(random_token());
    return prompt;
  }
  SeqId submit(std::vector<TokenId> prompt) {
    const SeqId id(next_id_++);
    (void)scheduler_.submit({.id = id, .model = kv::ModelId(0), .prompt = std::move(prompt)});
    return id;
  }
  void step() {
    scheduler_.next_step(plan_);
    outcomes_.clear();
    for (const SeqRows& rows : plan_.rows) {
      const bool samples = rows.sampling == Sampling::kLastRow;
      outcomes_.push_back(samples ? StepOutcome{StepOutcome::Kind::kSampled, random_token()} : StepOutcome{});
    }
    scheduler_.commit_step(plan_, outcomes_);
  }
  void finish(SeqId id) { scheduler_.finish(id, FinishReason::kStop); }
  void serve(std::vector<TokenId> prompt, int n_tokens) {
    const SeqId id = submit(std::move(prompt));
    for (int i = 0; i < n_tokens; ++i) step();
    finish(id);
  }
  uint64_t cached_blocks() const { return pool_.stats().cached_blocks; }

 private:
  static constexpr size_t kBlockBytes = 64;
  TokenId random_token() { return TokenId(static_cast<int32_t>(random_() % 50'000)); }

  kv::BlockPool pool_;
  kv::PrefixIndex index_{pool_, 3};
  SteadyClock clock_;
  Fcfs policy_;
  kv::Cache cache_{pool_, kv::ModelId(0), std::vector<kv::GroupSpec>{{.block_bytes = kBlockBytes}},
                   kv::PrefixConfig{.index = &index_, .clock = &clock_}};
  Scheduler scheduler_{{.step_tokens = 1 << 20}, clock_, policy_};
  std::minstd_rand random_{7};
  StepPlan plan_;
  std::vector<StepOutcome> outcomes_;
  uint64_t next_id_ = 1;
};

void step_beside_cached(benchmark::State& state) {
  FullCache full(static_cast<size_t>(state.range(0)));
  std::vector<SeqId> ids;
  for (int n = 0; auto _ : state) {
    if (n++ % 512 == 0) {  // before they outgrow a small pool
      state.PauseTiming();
      for (const SeqId id : ids) full.finish(id);
      ids.clear();
      for (int i = 0; i < 16; ++i) ids.push_back(full.submit(full.new_prompt(64)));
      full.step();
      state.ResumeTiming();
    }
    full.step();
  }
  state.counters["cached_blocks"] = static_cast<double>(full.cached_blocks());
}
BENCHMARK(step_beside_cached)->Arg(1000)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Iterations(20'000);

// 16 tokens in, 8 out.
void request_beside_cached(benchmark::State& state) {
  FullCache full(static_cast<size_t>(state.range(0)));
  for (auto _ : state) full.serve(full.new_prompt(16), 8);
  state.counters["cached_blocks"] = static_cast<double>(full.cached_blocks());
}
BENCHMARK(request_beside_cached)->Arg(1000)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Iterations(20'000);

}  // namespace
}  // namespace pagoda::sched
