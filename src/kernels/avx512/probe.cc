// Probe loops of AVX-512: FMA and VPDPBUSD, also twice for each product of two planes.
#include <immintrin.h>

#include "kernels/probe_loops.h"

// clang-format off
#include "kernels/avx512/begin.h"
// clang-format on

constexpr int kSums = 12;

inline void f32_rounds(int64_t n) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 a = _mm512_set1_ps(1.0F);
  asm volatile("" : "+v"(a));
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(a, a, sum);
    }
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
}

inline void int_rounds(int64_t n) {
  __m512i sums[kSums];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  __m512i codes = _mm512_set1_epi8(1);
  asm volatile("" : "+v"(codes));
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, codes, codes);
    }
  }
  for (__m512i& sum : sums) asm volatile("" : "+v"(sum));
}

// Low and high planes of weights, each with sums of its own.
inline void plane_rounds(int64_t n) {
  __m512i sums[kSums];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  __m512i low = _mm512_set1_epi8(1);
  __m512i high = _mm512_set1_epi8(1);
  __m512i values = _mm512_set1_epi8(1);
  asm volatile("" : "+v"(low), "+v"(high), "+v"(values));
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 6
    for (int s = 0; s < kSums; s += 2) {
      sums[s] = _mm512_dpbusd_epi32(sums[s], low, values);
      sums[s + 1] = _mm512_dpbusd_epi32(sums[s + 1], high, values);
    }
  }
  for (__m512i& sum : sums) asm volatile("" : "+v"(sum));
}

// Four streams: one alone leaves memory idle between two pages.
inline uint64_t read_bytes(const std::byte* p, size_t n_lines) {
  constexpr size_t kStreams = 4;
  const size_t part = n_lines / kStreams;
  __m512i sums[kStreams];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (size_t i = 0; i < part; ++i) {
#pragma GCC unroll 4
    for (size_t s = 0; s < kStreams; ++s)
      sums[s] = _mm512_or_si512(sums[s], _mm512_loadu_si512(p + 64 * (s * part + i)));
  }
  for (size_t i = kStreams * part; i < n_lines; ++i) sums[0] = _mm512_or_si512(sums[0], _mm512_loadu_si512(p + 64 * i));
  const __m512i all = _mm512_or_si512(_mm512_or_si512(sums[0], sums[1]), _mm512_or_si512(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm512_reduce_or_epi64(all));
}

// clang-format off
#include "kernels/avx512/end.h"
// clang-format on

namespace pagoda::kernels {

DotLoop dot_loop_avx512(DotKind kind) {
  switch (kind) {
    case DotKind::kF32:
      return {avx512::f32_rounds, 2.0 * 16 * avx512::kSums};
    case DotKind::kInt4:
    case DotKind::kInt5:
    case DotKind::kInt6:
    case DotKind::kInt8:
      return {avx512::int_rounds, 2.0 * 64 * avx512::kSums};
    case DotKind::kInt15:
      return {avx512::plane_rounds, 2.0 * 64 * avx512::kSums / 2};
    case DotKind::kBf16:
      break;
  }
  return {};
}

uint64_t read_bytes_avx512(std::span<const std::byte> bytes) {
  return avx512::read_bytes(bytes.data(), bytes.size() / 64);
}

}  // namespace pagoda::kernels
