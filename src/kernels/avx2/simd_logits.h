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

// The numbers of a byte's set bits, ascending, one per byte.
struct SetBits {
  uint64_t of[256];
  constexpr SetBits() : of() {
    for (uint32_t bits = 0; bits < 256; ++bits) {
      int found = 0;
      for (uint64_t bit = 0; bit < 8; ++bit) {
        if (bits >> bit & 1U) of[bits] |= bit << (8 * found++);
      }
    }
  }
};
inline constexpr SetBits kSetBits;

// Stores the lanes that `bits` names, packed, and returns how many; writes anything into the rest of the 16.
PAGODA_SIMD int store_packed(int32_t* out, I32 a, uint32_t bits) {
  const auto order = [](uint32_t byte) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kSetBits.of[byte])));
  };
  const uint32_t low = bits & 0xFF, high = bits >> 8;
  const int n_low = std::popcount(low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(a.lo, order(low)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + n_low), _mm256_permutevar8x32_epi32(a.hi, order(high)));
  return n_low + std::popcount(high);
}
