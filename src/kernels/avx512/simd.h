// Sixteen virtual lanes on AVX-512: one zmm. The same names with the same bits are in avx2/simd.h; generic/*.h is
// written over them.
// Not self-contained: include inside the region (begin.h), after <immintrin.h>, <cstdint> and "kernels/kernels.h".
// `fma` is the only fused operation; max(a, b) is a > b ? a : b as MAXPS computes it (b if either is NaN).

inline constexpr int kLanes = 16;

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

PAGODA_SIMD F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
PAGODA_SIMD void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
PAGODA_SIMD F32 splat(float x) { return {_mm512_set1_ps(x)}; }
PAGODA_SIMD F32 zero() { return {_mm512_setzero_ps()}; }
// The first n lanes in [0, 16]; the others are read as 0, and not written.
PAGODA_SIMD F32 load_first(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << n) - 1), p)};
}
PAGODA_SIMD void store_first(float* p, F32 a, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << n) - 1), a.v);
}

PAGODA_SIMD F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
PAGODA_SIMD F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PAGODA_SIMD F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PAGODA_SIMD F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
PAGODA_SIMD F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c, rounded once
PAGODA_SIMD F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
PAGODA_SIMD F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
PAGODA_SIMD F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }

PAGODA_SIMD I32 splat_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
PAGODA_SIMD I32 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
PAGODA_SIMD void store_i32(void* p, I32 a) { _mm512_storeu_si512(p, a.v); }
PAGODA_SIMD I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
PAGODA_SIMD I32 sub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PAGODA_SIMD I32 bit_and(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
PAGODA_SIMD I32 bit_or(I32 a, I32 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kBits>
PAGODA_SIMD I32 shift_left(I32 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
PAGODA_SIMD I32 shift_right_signed(I32 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
PAGODA_SIMD I32 lane_numbers() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }

PAGODA_SIMD I32 bits_of(F32 a) { return {_mm512_castps_si512(a.v)}; }
PAGODA_SIMD F32 from_bits(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
PAGODA_SIMD F32 to_f32(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
PAGODA_SIMD I32 round_to_i32(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }  // nearest, ties to even

PAGODA_SIMD Mask less(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
PAGODA_SIMD Mask greater(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
PAGODA_SIMD F32 select(Mask m, F32 if_set, F32 if_not) { return {_mm512_mask_blend_ps(m.v, if_not.v, if_set.v)}; }
PAGODA_SIMD I32 select(Mask m, I32 if_set, I32 if_not) { return {_mm512_mask_blend_epi32(m.v, if_not.v, if_set.v)}; }
// Lanes i with begin <= i < end, for any begin and end.
PAGODA_SIMD Mask lanes_in(int begin, int end) {
  const __m512i lane = lane_numbers().v;
  const __mmask16 not_before = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin));
  return {_mm512_mask_cmplt_epi32_mask(not_before, lane, _mm512_set1_epi32(end))};
}

// Sixteen int8, bf16 or f16 values from memory. int8 is written saturated; f16 rounds to nearest even.
PAGODA_SIMD F32 widen_i8(const void* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
PAGODA_SIMD F32 widen_bf16(const void* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16))};
}
PAGODA_SIMD F32 widen_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
PAGODA_SIMD void store_i8(void* p, I32 a) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v)); }

// Sixty-four values as int8, saturated, in order.
PAGODA_SIMD I32 narrow_i8(I32 a, I32 b, I32 c, I32 d) {
  const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(a.v, b.v), _mm512_packs_epi32(c.v, d.v));
  return {_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes)};
}
PAGODA_SIMD __m256i low_half(I32 a) { return _mm512_castsi512_si256(a.v); }
PAGODA_SIMD __m256i high_half(I32 a) { return _mm512_extracti64x4_epi64(a.v, 1); }

// The fixed tree: lane i + lane i + 8, then + 4, + 2, + 1.
PAGODA_SIMD float reduce_add(F32 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PAGODA_SIMD float reduce_max(F32 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// The largest lane of each, none of which is a NaN.
PAGODA_SIMD __m128 reduce_max(F32 a, F32 b, F32 c, F32 d) {
  const __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  const __m512 low = _mm512_shuffle_ps(ab, cd, 0x44);  // in every four lanes two of each pair
  const __m512 high = _mm512_shuffle_ps(ab, cd, 0xEE);
  const __m512 fours = _mm512_max_ps(low, high);
  const __m256 eights = _mm256_max_ps(_mm512_castps512_ps256(fours), _mm512_extractf32x8_ps(fours, 1));
  return _mm_max_ps(_mm256_castps256_ps128(eights), _mm256_extractf128_ps(eights, 1));
}
PAGODA_SIMD int32_t reduce_add(I32 a) { return _mm512_reduce_add_epi32(a.v); }

// Pairs (lanes 2i, 2i + 1), and 32 interleaved values taken apart.
PAGODA_SIMD F32 duplicate_even(F32 a) { return {_mm512_moveldup_ps(a.v)}; }
PAGODA_SIMD F32 duplicate_odd(F32 a) { return {_mm512_movehdup_ps(a.v)}; }
PAGODA_SIMD F32 swap_pairs(F32 a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
// a - b in even lanes, a + b in odd ones.
PAGODA_SIMD F32 subtract_add(F32 a, F32 b) { return {_mm512_mask_sub_ps(_mm512_add_ps(a.v, b.v), 0x5555, a.v, b.v)}; }
PAGODA_SIMD F32 even_lanes(F32 a, F32 b) {
  const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return {_mm512_permutex2var_ps(a.v, index, b.v)};
}
PAGODA_SIMD F32 odd_lanes(F32 a, F32 b) {
  const __m512i index = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {_mm512_permutex2var_ps(a.v, index, b.v)};
}
