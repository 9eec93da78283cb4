// What AVX512-BF16 adds for the tiles' operands: the names of avx512/simd_bf16.h that the tile driver uses.
// Not self-contained: include inside the region, after avx512/simd.h.

// Sixteen pairs of values rounded to bf16 (as round_bf16, whatever the thread's mode), the even one first in memory.
PAGODA_SIMD I32 round_pairs(F32 even, F32 odd) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return {_mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v))};
}
