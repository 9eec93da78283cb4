// Bf16 in the upper halves of lanes, packed, on AVX2. The same names are in avx512/simd_bf16.h.
// Not self-contained: include inside the region, after simd.h and generic/bf16_rule.h.

// The upper halves of 16 lanes.
PAGODA_SIMD void store_bf16(void* p, F32 a) {
  const I32 bits = bits_of(a);
  const __m256i words = _mm256_packus_epi32(_mm256_srli_epi32(bits.lo, 16), _mm256_srli_epi32(bits.hi, 16));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xD8));
}
// Sixteen pairs of values rounded to bf16, the even one first in memory.
PAGODA_SIMD I32 round_pairs(F32 even, F32 odd) {
  const I32 low = bits_of(round_bf16(even));
  return bit_or({_mm256_srli_epi32(low.lo, 16), _mm256_srli_epi32(low.hi, 16)}, bits_of(round_bf16(odd)));
}
