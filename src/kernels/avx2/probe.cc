// Probe loops of AVX2: FMA, the chains of VPMADDUBSW, VPADDW, VPMADDWD and VPADDD that stand for int8 dots, and the last two alone.
#include <immintrin.h>

#include "kernels/probe_loops.h"

// clang-format off
#include "kernels/avx2/begin.h"
// clang-format on

constexpr int kF32Sums = 12;
constexpr int kIntSums = 4;

inline void f32_rounds(int64_t n) {
  __m256 sums[kF32Sums];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 a = _mm256_set1_ps(1.0F);
  asm volatile("" : "+x"(a));
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(a, a, sum);
    }
  }
  for (__m256& sum : sums) asm volatile("" : "+x"(sum));
}

// Each sum takes kProducts groups of 32 products per round, added in 16 bits first.
template <int kProducts>
inline void int_rounds(int64_t n) {
  __m256i sums[kIntSums];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  __m256i codes = _mm256_set1_epi8(1);
  const __m256i x = _mm256_set1_epi8(1);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 4
    for (__m256i& sum : sums) {
      __m256i words = _mm256_maddubs_epi16(codes, x);
#pragma GCC unroll 8
      for (int product = 1; product < kProducts; ++product) {
        asm volatile("" : "+x"(codes));  // another operand, for all the compiler knows
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(codes, x));
      }
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, ones));
      asm volatile("" : "+x"(codes));
    }
  }
  for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
}

// 16-bit products.
inline void word_rounds(int64_t n) {
  __m256i sums[kIntSums];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  __m256i weights = _mm256_set1_epi16(1);
  const __m256i values = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 4
    for (__m256i& sum : sums) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, values));
      asm volatile("" : "+x"(weights));  // another operand, for all the compiler knows
    }
  }
  for (__m256i& sum : sums) asm volatile("" : "+x"(sum));
}

// Four streams: one alone leaves memory idle between two pages.
inline uint64_t read_bytes(const std::byte* p, size_t n_lines) {
  constexpr size_t kStreams = 4;
  const size_t part = n_lines / kStreams;
  __m256i sums[kStreams];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  const auto line = [&](__m256i& sum, size_t at) {
    const auto* from = reinterpret_cast<const __m256i*>(p + 64 * at);
    sum = _mm256_or_si256(sum, _mm256_or_si256(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)));
  };
  for (size_t i = 0; i < part; ++i) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kStreams; ++s) line(sums[s], s * part + i);
  }
  for (size_t i = kStreams * part; i < n_lines; ++i) line(sums[0], i);
  const __m256i all = _mm256_or_si256(_mm256_or_si256(sums[0], sums[1]), _mm256_or_si256(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) | _mm256_extract_epi64(all, 2));
}

// clang-format off
#include "kernels/avx2/end.h"
// clang-format on

namespace pagoda::kernels {

DotLoop dot_loop_avx2(DotKind kind) {
  constexpr double kRow = 2.0 * 32 * avx2::kIntSums;
  switch (kind) {
    case DotKind::kF32:
      return {avx2::f32_rounds, 2.0 * 8 * avx2::kF32Sums};
    case DotKind::kInt4:
      return {avx2::int_rounds<8>, 8 * kRow};
    case DotKind::kInt5:
      return {avx2::int_rounds<4>, 4 * kRow};
    case DotKind::kInt6:
      return {avx2::int_rounds<2>, 2 * kRow};
    case DotKind::kInt8:
      return {avx2::int_rounds<1>, kRow};
    case DotKind::kInt15:
      return {avx2::word_rounds, 2.0 * 16 * avx2::kIntSums};
    case DotKind::kBf16:
      break;
  }
  return {};
}

uint64_t read_bytes_avx2(std::span<const std::byte> bytes) { return avx2::read_bytes(bytes.data(), bytes.size() / 64); }

}  // namespace pagoda::kernels
