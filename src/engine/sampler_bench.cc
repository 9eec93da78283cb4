// One draw, or one token's logprobs, from a row of logits: microseconds. Names: sampler/parameters/isa/vocabulary/shape of the distribution.
// "peaked" is what a model that knows the next word gives: a handful of tokens hold 0.9 of the mass. "flat" has no such head.
// The tiles come with the logits, as the executor delivers them.   One thread.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "engine/sampler.h"

namespace pagoda::engine {
namespace {

constexpr int kVocabularies[] = {49152, 151936, 262144};

enum class Shape : uint8_t { kPeaked, kFlat };

// Bell-shaped with standard deviation 2.5, as the logits of small models are; and a head whose r-th logit is 18 - 2 ln(r).
std::vector<float> make_logits(int vocab, Shape shape) {
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (size_t i = 0; i < logits.size(); ++i) {
    double sum = -6;
    for (uint32_t draw = 0; draw < 12; ++draw) sum += uniform(7, 0, static_cast<uint32_t>(i), draw);
    logits[i] = static_cast<float>(2.5 * sum);
  }
  if (shape == Shape::kFlat) return logits;
  for (int rank = 1; rank <= 40; ++rank) {
    logits[static_cast<size_t>(rank) * 7919 % logits.size()] = static_cast<float>(18 - 2 * std::log(rank));
  }
  return logits;
}

std::vector<kernels::LogitTile> make_tiles(const kernels::KernelTable& kernels, const std::vector<float>& logits) {
  std::vector<kernels::LogitTile> tiles((logits.size() + kernels::kLogitsTile - 1) / kernels::kLogitsTile);
  kernels.logit_tiles(logits.data(), static_cast<int>(logits.size()), tiles.data());
  return tiles;
}

// 300 tokens generated, 1,000 in prompt and output.
TokenHistory make_history(int vocab) {
  TokenHistory history;
  for (int i = 0; i < 1000; ++i) {
    const TokenId token(static_cast<int32_t>(i * int64_t{7919} % vocab));
    history.seen[token] = 1;
    if (i < 300) history.generated[token] = 1 + i % 3;
  }
  return history;
}

struct Case {
  std::string name;
  SamplingParams params;
};

void draw(benchmark::State& state, const kernels::KernelTable& kernels, const SamplingParams& params, int vocab,
          Shape shape) {
  kernels::set_float_mode();
  const std::vector<float> logits = make_logits(vocab, shape);
  const std::vector<kernels::LogitTile> tiles = make_tiles(kernels, logits);
  const TokenHistory history = make_history(vocab);
  Sampler sampler(kernels);
  uint32_t position = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        sampler.sample({logits, tiles}, params, history, {}, {.seed = 1, .choice = 0, .position = position++}));
  }
}

void logprobs(benchmark::State& state, const kernels::KernelTable& kernels, int n_top, int vocab, Shape shape) {
  kernels::set_float_mode();
  const std::vector<float> logits = make_logits(vocab, shape);
  const std::vector<kernels::LogitTile> tiles = make_tiles(kernels, logits);
  Sampler sampler(kernels);
  for (auto _ : state) benchmark::DoNotOptimize(sampler.logprob({logits, tiles}, TokenId(17), n_top));
}

void tiles_alone(benchmark::State& state, const kernels::KernelTable& kernels, int vocab) {
  const std::vector<float> logits = make_logits(vocab, Shape::kFlat);
  for (auto _ : state) benchmark::DoNotOptimize(make_tiles(kernels, logits));
}

std::vector<Case> cases() {
  return {
      {"greedy", {.temperature = 0}},
      {"temperature_1", {}},
      {"top_p_0.95", {.top_p = 0.95f}},
      {"top_k_40_top_p_0.95", {.top_p = 0.95f, .top_k = 40}},
      {"top_k_1000", {.top_k = 1000}},
      {"min_p_0.05", {.min_p = 0.05f}},
      {"typical_p_0.95", {.typical_p = 0.95f}},
      {"greedy_penalties", {.temperature = 0, .presence_penalty = 0.2f, .frequency_penalty = 0.1f}},
      {"temperature_0.7_repetition_1.1", {.temperature = 0.7f, .top_p = 0.95f, .repetition_penalty = 1.1f}},
  };
}

void add(const std::string& name, const auto& run) {
  benchmark::RegisterBenchmark(("sampler/" + name).c_str(), run)->Unit(benchmark::kMicrosecond);
}

const int kRegistered = [] {
  for (const kernels::Isa isa : kernels::supported_isas()) {
    if (isa == kernels::Isa::kRef) continue;
    const kernels::KernelTable& kernels = kernels::kernel_table(isa);
    for (const int vocab : kVocabularies) {
      const std::string of = fmt::format("/{}/{}", kernels::to_string(isa), vocab);
      for (const auto& [shape, suffix] : {std::pair{Shape::kPeaked, "/peaked"}, {Shape::kFlat, "/flat"}}) {
        for (const Case& c : cases()) {
          add(c.name + of + suffix,
              [=, &kernels](benchmark::State& state) { draw(state, kernels, c.params, vocab, shape); });
        }
        add("logprobs_20" + of + suffix,
            [=, &kernels](benchmark::State& state) { logprobs(state, kernels, 20, vocab, shape); });
      }
      add("tiles_alone" + of, [=, &kernels](benchmark::State& state) { tiles_alone(state, kernels, vocab); });
    }
  }
  return 0;
}();

}  // namespace
}  // namespace pagoda::engine
