// What a lookup costs per block, and what the index costs in memory, at 10^3 to 10^6 cached blocks.
#include <benchmark/benchmark.h>

#include <random>

#include "kv/cache.h"

namespace pagoda::kv {
namespace {

constexpr int32_t kPromptBlocks = 64;

struct Filled {
  explicit Filled(size_t n_blocks)
      : pool({.budget_bytes = (n_blocks + kPromptBlocks * 4) * 64 + (1 << 20), .extent_bytes = 1 << 20}) {
    std::minstd_rand random(7);
    for (size_t p = 0; p < (n_blocks + kPromptBlocks - 1) / kPromptBlocks; ++p) {
      prompts.emplace_back();
      for (int i = 0; i < kPromptBlocks * kBlockTokens + 1; ++i) {
        prompts.back().push_back(TokenId(static_cast<int32_t>(random() % 50000)));
      }
      KvLease lease(ModelId(0), {});
      (void)cache.admit(lease, prompts.back(), kPromptBlocks * kBlockTokens + 1, ops);
      cache.commit(lease, lease.n_written() - lease.n_committed());
      cache.release(lease);
      ops.clear();
    }
  }
  BlockPool pool;
  PrefixIndex index{pool, 3};
  SteadyClock clock;
  Cache cache{pool, ModelId(0), std::vector<GroupSpec>{{.block_bytes = 64}},
              PrefixConfig{.index = &index, .clock = &clock}};
  std::vector<std::vector<TokenId>> prompts;
  std::vector<BlockOp> ops;
};

// Admission estimate: hash, probe, compare of 64 blocks of a random prompt.
void lookup(benchmark::State& state) {
  Filled f(static_cast<size_t>(state.range(0)));
  std::minstd_rand random(9);
  for (auto _ : state) benchmark::DoNotOptimize(f.cache.match_tokens({}, f.prompts[random() % f.prompts.size()]));
  state.counters["ns_per_block"] = benchmark::Counter(static_cast<double>(state.iterations()) * kPromptBlocks * 1e-9,
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  const auto descriptors = static_cast<double>(f.pool.n_extents() * (f.pool.extent_bytes() / 64)) * 16;
  state.counters["index_bytes_per_block"] =
      static_cast<double>(f.index.stats().memory_bytes) / static_cast<double>(f.pool.stats().cached_blocks);
  state.counters["pool_bytes_per_block"] = descriptors / static_cast<double>(f.pool.stats().cached_blocks);
}
BENCHMARK(lookup)->Arg(1000)->Arg(10'000)->Arg(100'000)->Arg(1'000'000);

// Takes a hit of 64 blocks and gives it back.
void admit_hit(benchmark::State& state) {
  Filled f(static_cast<size_t>(state.range(0)));
  std::minstd_rand random(9);
  KvLease lease(ModelId(0), {});
  for (auto _ : state) {
    (void)f.cache.admit(lease, f.prompts[random() % f.prompts.size()], 1, f.ops);
    f.cache.release(lease);
    f.ops.clear();
  }
  state.counters["ns_per_block"] = benchmark::Counter(static_cast<double>(state.iterations()) * kPromptBlocks * 1e-9,
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(admit_hit)->Arg(1000)->Arg(10'000)->Arg(100'000)->Arg(1'000'000);

// New prompts in a full cache: every block evicts one.
void evict_and_register(benchmark::State& state) {
  Filled f(static_cast<size_t>(state.range(0)));
  std::minstd_rand random(11);
  std::vector<TokenId> prompt(kPromptBlocks * kBlockTokens + 1);
  KvLease lease(ModelId(0), {});
  for (auto _ : state) {
    for (TokenId& token : prompt) token = TokenId(static_cast<int32_t>(random() % 50000));
    (void)f.cache.admit(lease, prompt, kPromptBlocks * kBlockTokens + 1, f.ops);
    f.cache.commit(lease, lease.n_written() - lease.n_committed());
    f.cache.release(lease);
    f.ops.clear();
  }
  state.counters["ns_per_block"] = benchmark::Counter(static_cast<double>(state.iterations()) * kPromptBlocks * 1e-9,
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(evict_and_register)->Arg(1000)->Arg(10'000)->Arg(100'000)->Arg(1'000'000);

}  // namespace
}  // namespace pagoda::kv
