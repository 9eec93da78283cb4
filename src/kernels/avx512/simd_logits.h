// What rows of logits add to simd.h on AVX-512. The same names are in avx2/simd_logits.h.
// Not self-contained: include inside the region, after simd.h.

PAGODA_SIMD Mask equal(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
PAGODA_SIMD Mask at_least(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
PAGODA_SIMD Mask both(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
PAGODA_SIMD uint32_t lane_bits(Mask m) { return m.v; }  // bit i says lane i

// Stores the lanes that `bits` names, packed, and returns how many; writes anything into the rest of the 16.
PAGODA_SIMD int store_packed(int32_t* out, I32 a, uint32_t bits) {
  store_i32(out, {_mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), a.v)});
  return std::popcount(bits);
}
