// Bf16 in the upper halves of lanes, packed, on AVX-512. The same names are in avx2/simd_bf16.h.
// Not self-contained: include inside the region, after simd.h and generic/bf16_rule.h.

// The upper halves of 16 lanes.
PAGODA_SIMD void store_bf16(void* p, F32 a) {
  const __m512i words = _mm512_srli_epi32(_mm512_castps_si512(a.v), 16);
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
}
// Sixteen pairs of values rounded to bf16, the even one first in memory.
PAGODA_SIMD I32 round_pairs(F32 even, F32 odd) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(round_bf16(even).v), 16);
  return {_mm512_or_si512(low, _mm512_castps_si512(round_bf16(odd).v))};
}
