// What rows of logits add to simd.h on AVX2. The same names are in avx512/simd_logits.h.
// Not self-contained: include inside the region, after simd.h.

PAGODA_SIMD Mask equal(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
PAGODA_SIMD Mask at_least(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
PAGODA_SIMD Mask both(Mask a, Mask b) { return {_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)}; }
// Bit i says lane i.
PAGODA_SIMD uint32_t lane_bits(Mask m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) | static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}
