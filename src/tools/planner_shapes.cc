#include "tools/planner_shapes.h"

#include <algorithm>
#include <numeric>

namespace pagoda::tools {
namespace {

using Part = WeightTensor::Part;
using tensor::DType;
constexpr auto kOwn = PublicShape::Head::kOwn;
constexpr auto kTied = PublicShape::Head::kTied;
constexpr auto kNone = PublicShape::Extras::kNone;
constexpr auto kQkvBias = PublicShape::Extras::kQkvBias;
constexpr auto kQkNorm = PublicShape::Extras::kQkNorm;
constexpr auto kGemma = PublicShape::Extras::kGemma;

// slug, source, layers, heads, KV heads, head_dim, embed, FFN, vocabulary, context, head, extras, window, global every, parameters
// Gemma 3 from 4B on: the language model. The published counts (4,300,079,472; 12,187,325,040; 27,432,406,640) hold an image tower and its
// projection too, 416,866,032 + 1,152 x (width + 1) in each.
// clang-format off
constexpr PublicShape kShapes[] = {
    {"llama-2-7b", "meta-llama/Llama-2-7b-hf", 32, 32, 32, 128, 4096, 11008, 32000, 4096, kOwn, kNone, 0, 0, 6738415616},
    {"llama-2-13b", "meta-llama/Llama-2-13b-hf", 40, 40, 40, 128, 5120, 13824, 32000, 4096, kOwn, kNone, 0, 0, 13015864320},
    {"llama-2-70b", "meta-llama/Llama-2-70b-hf", 80, 64, 8, 128, 8192, 28672, 32000, 4096, kOwn, kNone, 0, 0, 68976648192},
    {"llama-3-8b", "meta-llama/Meta-Llama-3-8B", 32, 32, 8, 128, 4096, 14336, 128256, 8192, kOwn, kNone, 0, 0, 8030261248},
    {"llama-3-70b", "meta-llama/Meta-Llama-3-70B", 80, 64, 8, 128, 8192, 28672, 128256, 8192, kOwn, kNone, 0, 0, 70553706496},
    {"llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 32, 8, 128, 4096, 14336, 128256, 131072, kOwn, kNone, 0, 0, 8030261248},
    {"llama-3.1-70b", "meta-llama/Llama-3.1-70B", 80, 64, 8, 128, 8192, 28672, 128256, 131072, kOwn, kNone, 0, 0, 70553706496},
    {"llama-3.1-405b", "meta-llama/Llama-3.1-405B", 126, 128, 8, 128, 16384, 53248, 128256, 131072, kOwn, kNone, 0, 0, 405853388800},
    {"llama-3.2-1b", "meta-llama/Llama-3.2-1B", 16, 32, 8, 64, 2048, 8192, 128256, 131072, kTied, kNone, 0, 0, 1235814400},
    {"llama-3.2-3b", "meta-llama/Llama-3.2-3B", 28, 24, 8, 128, 3072, 8192, 128256, 131072, kTied, kNone, 0, 0, 3212749824},
    {"tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 22, 32, 4, 64, 2048, 5632, 32000, 2048, kOwn, kNone, 0, 0, 1100048384},
    {"smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", 30, 9, 3, 64, 576, 1536, 49152, 8192, kTied, kNone, 0, 0, 134515008},
    {"smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", 32, 15, 5, 64, 960, 2560, 49152, 8192, kTied, kNone, 0, 0, 361821120},
    {"smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", 24, 32, 32, 64, 2048, 8192, 49152, 8192, kTied, kNone, 0, 0, 1711376384},
    {"mistral-7b", "mistralai/Mistral-7B-v0.3", 32, 32, 8, 128, 4096, 14336, 32768, 32768, kOwn, kNone, 0, 0, 7248023552},
    {"mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1", 32, 32, 8, 128, 4096, 14336, 32000, 32768, kOwn, kNone, 4096, 0, 7241732096},
    {"mistral-nemo-12b", "mistralai/Mistral-Nemo-Instruct-2407", 40, 32, 8, 128, 5120, 14336, 131072, 131072, kOwn, kNone, 0, 0, 12247782400},
    {"phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 32, 32, 32, 96, 3072, 8192, 32064, 4096, kOwn, kNone, 2047, 0, 3821079552},
    {"phi-3-mini-128k", "microsoft/Phi-3-mini-128k-instruct", 32, 32, 32, 96, 3072, 8192, 32064, 131072, kOwn, kNone, 0, 0, 3821079552},
    {"phi-3-medium-128k", "microsoft/Phi-3-medium-128k-instruct", 40, 40, 10, 128, 5120, 17920, 32064, 131072, kOwn, kNone, 0, 0, 13960238080},
    {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", 24, 14, 2, 64, 896, 4864, 151936, 32768, kTied, kQkvBias, 0, 0, 494032768},
    {"qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", 28, 12, 2, 128, 1536, 8960, 151936, 32768, kTied, kQkvBias, 0, 0, 1543714304},
    {"qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct", 36, 16, 2, 128, 2048, 11008, 151936, 32768, kTied, kQkvBias, 0, 0, 3085938688},
    {"qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", 28, 28, 4, 128, 3584, 18944, 152064, 32768, kOwn, kQkvBias, 0, 0, 7615616512},
    {"qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", 48, 40, 8, 128, 5120, 13824, 152064, 32768, kOwn, kQkvBias, 0, 0, 14770033664},
    {"qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", 64, 40, 8, 128, 5120, 27648, 152064, 32768, kOwn, kQkvBias, 0, 0, 32763876352},
    {"qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", 80, 64, 8, 128, 8192, 29568, 152064, 32768, kOwn, kQkvBias, 0, 0, 72706203648},
    {"qwen3-0.6b", "Qwen/Qwen3-0.6B", 28, 16, 8, 128, 1024, 3072, 151936, 40960, kTied, kQkNorm, 0, 0, 596049920},
    {"qwen3-1.7b", "Qwen/Qwen3-1.7B", 28, 16, 8, 128, 2048, 6144, 151936, 40960, kTied, kQkNorm, 0, 0, 1720574976},
    {"qwen3-4b", "Qwen/Qwen3-4B", 36, 32, 8, 128, 2560, 9728, 151936, 40960, kTied, kQkNorm, 0, 0, 4022468096},
    {"qwen3-8b", "Qwen/Qwen3-8B", 36, 32, 8, 128, 4096, 12288, 151936, 40960, kOwn, kQkNorm, 0, 0, 8190735360},
    {"qwen3-14b", "Qwen/Qwen3-14B", 40, 40, 8, 128, 5120, 17408, 151936, 40960, kOwn, kQkNorm, 0, 0, 14768307200},
    {"qwen3-32b", "Qwen/Qwen3-32B", 64, 64, 8, 128, 5120, 25600, 151936, 40960, kOwn, kQkNorm, 0, 0, 32762123264},
    {"gemma-3-270m", "google/gemma-3-270m", 18, 4, 1, 256, 640, 2048, 262144, 32768, kTied, kGemma, 512, 6, 268098176},
    {"gemma-3-1b", "google/gemma-3-1b-it", 26, 4, 1, 256, 1152, 6912, 262144, 32768, kTied, kGemma, 512, 6, 999885952},
    {"gemma-3-4b", "google/gemma-3-4b-it", 34, 8, 4, 256, 2560, 10240, 262208, 131072, kTied, kGemma, 1024, 6, 3880263168},
    {"gemma-3-12b", "google/gemma-3-12b-it", 48, 16, 8, 256, 3840, 15360, 262208, 131072, kTied, kGemma, 1024, 6, 11766034176},
    {"gemma-3-27b", "google/gemma-3-27b-it", 62, 32, 16, 128, 5376, 21504, 262208, 131072, kTied, kGemma, 1024, 6, 27009346304},
};
// clang-format on

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// Letters to change, add or drop to make b of a (Levenshtein 1966).
int distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Source: llama.cpp, src/llama-quant.cpp, the types for rows that are no multiple of 256.
DType type_for_row(DType type, int64_t n_cols) {
  if (n_cols % tensor::info(type).block_elements == 0) return type;
  switch (type) {
    case DType::kQ4_K:
      type = DType::kQ5_0;
      break;
    case DType::kQ5_K:
      type = DType::kQ5_1;
      break;
    case DType::kQ6_K:
      type = DType::kQ8_0;
      break;
    default:
      type = DType::kIQ4_NL;
  }
  return n_cols % tensor::info(type).block_elements == 0 ? type : DType::kF16;
}

}  // namespace

std::span<const PublicShape> public_shapes() { return kShapes; }

const PublicShape* find_shape(std::string_view slug) {
  const auto* at = std::ranges::find(kShapes, lower(slug), &PublicShape::slug);
  return at == std::end(kShapes) ? nullptr : at;
}

std::vector<std::string> near_shapes(std::string_view text) {
  constexpr size_t kMost = 5;
  const std::string wanted = lower(text);
  std::vector<std::pair<int, std::string_view>> ranked;
  for (const PublicShape& shape : kShapes) {  // a common beginning says more than letters in other places
    ranked.emplace_back(distance(wanted, shape.slug) - static_cast<int>(common_prefix(wanted, shape.slug)), shape.slug);
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<int, std::string_view>::first);
  std::vector<std::string> near;
  for (size_t i = 0; i < std::min(kMost, ranked.size()); ++i) near.emplace_back(ranked[i].second);
  return near;
}

weights::ModelConfig config_of(const PublicShape& shape) {
  weights::ModelConfig config;
  config.name = shape.slug;
  config.n_layers = shape.n_layers;
  config.n_heads = shape.n_heads;
  config.n_kv_heads = shape.n_kv_heads;
  config.head_dim = shape.head_dim;
  config.embed_dim = shape.embed_dim;
  config.ffn_dim = shape.ffn_dim;
  config.vocab_size = shape.vocab_size;
  config.context_length = shape.context_tokens;
  if (shape.window_tokens == 0) return config;
  config.sliding_window = shape.window_tokens;
  for (int layer = 1; layer <= shape.n_layers; ++layer)
    config.local_layers.push_back(shape.global_every > 0 && layer % shape.global_every == 0 ? 0 : 1);
  return config;
}

std::vector<WeightTensor> tensors_of(const PublicShape& s, DType type) {
  std::vector<WeightTensor> tensors;
  const auto matrix = [&](Part part, int64_t rows, int64_t cols) {
    tensors.push_back({.part = part, .dtype = type_for_row(type, cols), .n_dims = 2, .rows = rows, .cols = cols});
  };
  const auto vector = [&](Part part, int64_t n) {
    tensors.push_back({.part = part, .dtype = DType::kF32, .n_dims = 1, .rows = 1, .cols = n});
  };
  const int64_t q_dim = int64_t{s.n_heads} * s.head_dim;
  const int64_t kv_dim = int64_t{s.n_kv_heads} * s.head_dim;
  matrix(s.head == kTied ? Part::kHead : Part::kOther, s.vocab_size, s.embed_dim);
  if (s.head == kOwn) matrix(Part::kHead, s.vocab_size, s.embed_dim);
  vector(Part::kOther, s.embed_dim);
  for (int layer = 0; layer < s.n_layers; ++layer) {
    for (const int64_t rows : {q_dim, kv_dim, kv_dim}) {
      matrix(Part::kBody, rows, s.embed_dim);
      if (s.extras == kQkvBias) vector(Part::kBody, rows);
    }
    matrix(Part::kBody, s.embed_dim, q_dim);
    matrix(Part::kBody, s.ffn_dim, s.embed_dim);
    matrix(Part::kBody, s.ffn_dim, s.embed_dim);
    matrix(Part::kBody, s.embed_dim, s.ffn_dim);
    for (int norm = 0; norm < (s.extras == kGemma ? 4 : 2); ++norm) vector(Part::kBody, s.embed_dim);
    if (s.extras == kGemma || s.extras == kQkNorm) {
      vector(Part::kBody, s.head_dim);
      vector(Part::kBody, s.head_dim);
    }
  }
  return tensors;
}

}  // namespace pagoda::tools
