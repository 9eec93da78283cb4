// What every attention kernel asks of its arguments. Internal to kernels.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/kernels.h"

namespace pagoda::kernels {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The tokens of a span that a row sees, counted from the span's first token: [begin, end) within [0, kSpanTokens), or
// begin == end.
inline Range visible_tokens(const AttentionArgs& args, int row, int span) {
  const int64_t first = int64_t{span} * kSpanTokens;
  const int64_t position = args.position[row];
  const int64_t lowest = args.window == 0 ? 0 : std::max<int64_t>(position - args.window + 1, 0);
  const int64_t begin = std::clamp<int64_t>(lowest - first, 0, kSpanTokens);
  const int64_t end = std::clamp<int64_t>(position + 1 - first, begin, kSpanTokens);
  return {static_cast<int>(begin), static_cast<int>(end)};
}

// Scratch of one attention_span call; ref needs none. Units: bytes from its start, every part on 64 bytes.
struct SpanScratch {
  static constexpr size_t kScores = 0;  // f32 [rows, span tokens]
  static constexpr size_t kKScales = kScores + kAttentionMaxRows * kSpanTokens * sizeof(float);  // f32 [span tokens]
  static constexpr size_t kVScales = kKScales + kSpanTokens * sizeof(float);                     // f32 [span tokens]
  static constexpr size_t kAmounts = kVScales + kSpanTokens * sizeof(float);                     // f32 [rows]
  static constexpr size_t kCorrections = kAmounts + kAttentionMaxRows * sizeof(float);           // i32 [rows]
  static constexpr size_t kUnits = kCorrections + kAttentionMaxRows * sizeof(int32_t);           // f32 [rows]
  static constexpr size_t kValueStarts = kUnits + kAttentionMaxRows * sizeof(float);             // i32 [rows]
  static constexpr size_t kMaxima = kValueStarts + kAttentionMaxRows * sizeof(int32_t);          // f32 [rows][16 lanes]
  static constexpr size_t kQueries = kMaxima + kAttentionMaxRows * 16 * sizeof(float);
  // int8, bf16 or f32 [rows, head_dim], then one block of K and a span of V widened to bf16 (AMX tiles).
  static constexpr size_t keys(int head_dim) { return kQueries + at(kAttentionMaxRows * sizeof(float), head_dim); }
  static constexpr size_t values(int head_dim) { return keys(head_dim) + at(kBlockBytes, head_dim + kTailDims); }
  static constexpr size_t bytes(int head_dim) { return values(head_dim) + at(kSpanBlocks * kBlockBytes, head_dim); }

 private:
  static constexpr size_t kBlockBytes = kv::kBlockTokens * sizeof(uint16_t);  // per dim
  static constexpr int kTailDims = 16;                                        // zeros up to whole cells of 32
  static constexpr size_t at(size_t bytes_per_dim, int dims) { return bytes_per_dim * static_cast<size_t>(dims); }
};

}  // namespace pagoda::kernels
