// Sixteen virtual lanes on AVX2 and FMA: two ymm. The same names with the same bits are in avx512/simd.h; generic/*.h
// is written over them.
// Not self-contained: include inside the region (begin.h), after <immintrin.h>, <cstdint> and "kernels/kernels.h".
// `fma` is the only fused operation; max(a, b) is a > b ? a : b as MAXPS computes it (b if either is NaN).

inline constexpr int kLanes = 16;

struct F32 {
  __m256 lo, hi;
};
struct I32 {
  __m256i lo, hi;
};
struct Mask {
  __m256 lo, hi;
};

PAGODA_SIMD F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PAGODA_SIMD void store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
PAGODA_SIMD F32 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PAGODA_SIMD F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

PAGODA_SIMD I32 splat_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
PAGODA_SIMD I32 lane_numbers() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
PAGODA_SIMD I32 first_lanes(int n) {
  const I32 lane = lane_numbers();
  const __m256i end = _mm256_set1_epi32(n);
  return {_mm256_cmpgt_epi32(end, lane.lo), _mm256_cmpgt_epi32(end, lane.hi)};
}
// The first n lanes in [0, 16]; the others are read as 0, and not written.
PAGODA_SIMD F32 load_first(const float* p, int n) {
  const I32 m = first_lanes(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
PAGODA_SIMD void store_first(float* p, F32 a, int n) {
  const I32 m = first_lanes(n);
  _mm256_maskstore_ps(p, m.lo, a.lo);
  _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}

PAGODA_SIMD F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
PAGODA_SIMD F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
PAGODA_SIMD F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
PAGODA_SIMD F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a * b + c, rounded once.
PAGODA_SIMD F32 fma(F32 a, F32 b, F32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
PAGODA_SIMD F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
PAGODA_SIMD F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
PAGODA_SIMD F32 abs(F32 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

PAGODA_SIMD I32 load_i32(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
PAGODA_SIMD void store_i32(void* p, I32 a) {
  __m256i* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, a.lo);
  _mm256_storeu_si256(q + 1, a.hi);
}
PAGODA_SIMD I32 add(I32 a, I32 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
PAGODA_SIMD I32 sub(I32 a, I32 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
PAGODA_SIMD I32 bit_and(I32 a, I32 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
PAGODA_SIMD I32 bit_or(I32 a, I32 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int kBits>
PAGODA_SIMD I32 shift_left(I32 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
PAGODA_SIMD I32 shift_right_signed(I32 a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}

PAGODA_SIMD I32 bits_of(F32 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
PAGODA_SIMD F32 from_bits(I32 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
PAGODA_SIMD F32 to_f32(I32 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// Nearest, ties to even.
PAGODA_SIMD I32 round_to_i32(F32 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }

PAGODA_SIMD Mask less(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
PAGODA_SIMD Mask greater(F32 a, F32 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
PAGODA_SIMD F32 select(Mask m, F32 if_set, F32 if_not) {
  return {_mm256_blendv_ps(if_not.lo, if_set.lo, m.lo), _mm256_blendv_ps(if_not.hi, if_set.hi, m.hi)};
}
PAGODA_SIMD I32 select(Mask m, I32 if_set, I32 if_not) {
  return bits_of(select(m, from_bits(if_set), from_bits(if_not)));
}
// Lanes i with begin <= i < end, for any begin and end.
PAGODA_SIMD Mask lanes_in(int begin, int end) {
  const I32 before = first_lanes(begin);
  const I32 below = first_lanes(end);
  const F32 m = from_bits({_mm256_andnot_si256(before.lo, below.lo), _mm256_andnot_si256(before.hi, below.hi)});
  return {m.lo, m.hi};
}

// Sixteen int8, bf16 or f16 values from memory. int8 is written saturated; f16 rounds to nearest even.
PAGODA_SIMD F32 widen_i8(const void* p) {
  const char* q = static_cast<const char*>(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q)))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + 8))))};
}
PAGODA_SIMD F32 widen_bf16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return from_bits({_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16),
                    _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16)});
}
PAGODA_SIMD F32 widen_f16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
PAGODA_SIMD void store_i8(void* p, I32 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

// Sixty-four values as int8, saturated, in order.
PAGODA_SIMD I32 narrow_i8(I32 a, I32 b, I32 c, I32 d) {
  const auto cell = [](I32 x, I32 y) __attribute__((always_inline)) {
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(x.lo, x.hi), _mm256_packs_epi32(y.lo, y.hi));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  };
  return {cell(a, b), cell(c, d)};
}
PAGODA_SIMD __m256i low_half(I32 a) { return a.lo; }
PAGODA_SIMD __m256i high_half(I32 a) { return a.hi; }

// The fixed tree: lane i + lane i + 8, then + 4, + 2, + 1.
PAGODA_SIMD float reduce_add(F32 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PAGODA_SIMD float reduce_max(F32 a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
// The largest lane of each, none of which is a NaN.
PAGODA_SIMD __m128 reduce_max(F32 a, F32 b, F32 c, F32 d) {
  const auto eight = [](F32 x) __attribute__((always_inline)) { return _mm256_max_ps(x.lo, x.hi); };
  const auto pair = [](__m256 x, __m256 y) __attribute__((always_inline)) {
    return _mm256_max_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
  };
  const __m256 ab = pair(eight(a), eight(b));
  const __m256 cd = pair(eight(c), eight(d));
  const __m256 fours = _mm256_max_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
  return _mm_max_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1));
}
PAGODA_SIMD int32_t reduce_add(I32 a) {
  const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

// Pairs (lanes 2i, 2i + 1), and 32 interleaved values taken apart.
PAGODA_SIMD F32 duplicate_even(F32 a) { return {_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi)}; }
PAGODA_SIMD F32 duplicate_odd(F32 a) { return {_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi)}; }
PAGODA_SIMD F32 swap_pairs(F32 a) { return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)}; }
// a - b in even lanes, a + b in odd ones.
PAGODA_SIMD F32 subtract_add(F32 a, F32 b) { return {_mm256_addsub_ps(a.lo, b.lo), _mm256_addsub_ps(a.hi, b.hi)}; }
template <int kPick>
PAGODA_SIMD __m256 every_second(__m256 a, __m256 b) {
  const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(a, b, kPick));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xD8));
}
PAGODA_SIMD F32 even_lanes(F32 a, F32 b) { return {every_second<0x88>(a.lo, a.hi), every_second<0x88>(b.lo, b.hi)}; }
PAGODA_SIMD F32 odd_lanes(F32 a, F32 b) { return {every_second<0xDD>(a.lo, a.hi), every_second<0xDD>(b.lo, b.hi)}; }
