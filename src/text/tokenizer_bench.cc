// Loading and encoding with a generated vocabulary of 128k tokens; real models' figures come from `pagoda tokenize` on large files.
#include <benchmark/benchmark.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace pagoda::text {
namespace {

// Random joins of earlier tokens, in rank order: the shape of a trained vocabulary, not its statistics.
struct Generated {
  std::vector<std::string> texts, merge_texts;
  std::vector<std::string_view> tokens, merges;
  std::vector<float> scores;

  explicit Generated(size_t n_tokens) {
    std::mt19937 rng(1);
    std::set<std::string> seen;
    for (uint32_t c = 0x21; c < 0x144; ++c) {
      std::string text;
      append_utf8(text, c);
      if (bytes_of_byte_level(text) && seen.insert(text).second) texts.push_back(text);
    }
    while (texts.size() < n_tokens) {
      const auto pick = [&] { return texts[rng() % 3 == 0 ? rng() % texts.size() : 0x41 + rng() % 26]; };
      const std::string left = pick(), right = pick();
      if (left.size() + right.size() > 16 || !seen.insert(left + right).second) continue;
      merge_texts.push_back(left + " " + right);
      texts.push_back(left + right);
    }
    tokens.assign(texts.begin(), texts.end());
    merges.assign(merge_texts.begin(), merge_texts.end());
    for (size_t i = 0; i < n_tokens; ++i) scores.push_back(-static_cast<float>(i));
  }

  Vocabulary vocabulary(std::string_view model) const {
    Vocabulary v;
    v.model = model;
    v.pre = "llama-bpe";
    v.tokens = tokens;
    v.merges = merges;
    v.scores = scores;
    return v;
  }
};

std::string words(size_t n_bytes) {
  std::mt19937 rng(2);
  std::string text;
  while (text.size() < n_bytes) {
    for (size_t n = 1 + rng() % 9; n > 0; --n) text += static_cast<char>('a' + rng() % 26);
    text += rng() % 12 == 0 ? ".\n" : " ";
  }
  return text;
}

const char* model_of(const benchmark::State& state) { return state.range(0) == 0 ? "gpt2" : "llama"; }

void load_vocabulary(benchmark::State& state) {
  const Generated generated(128'000);
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::create(generated.vocabulary(model_of(state))));
  state.SetLabel(model_of(state));
}
BENCHMARK(load_vocabulary)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void encode_text(benchmark::State& state, const std::string& text) {
  const auto tokenizer = Tokenizer::create(Generated(128'000).vocabulary(model_of(state)));
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->encode(text));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.SetLabel(model_of(state));
}
BENCHMARK_CAPTURE(encode_text, words, words(1 << 20))->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_text, one_letter, std::string(1 << 20, 'a'))->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pagoda::text
