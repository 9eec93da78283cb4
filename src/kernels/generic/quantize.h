// quantize_rows, once for every instruction set. Include inside a region, after simd_int8.h.

// Sums of 16 bytes each: PSADBW adds eight unsigned bytes, q + 128 here.
PAGODA_SIMD void store_sums16(__m256i q, int16_t* sums) {
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i sixteens = _mm256_add_epi16(eights, _mm256_unpackhi_epi64(eights, eights));
  const __m128i both = _mm_unpacklo_epi16(_mm256_castsi256_si128(sixteens), _mm256_extracti128_si256(sixteens, 1));
  const int32_t pair = _mm_cvtsi128_si32(_mm_sub_epi16(both, _mm_set1_epi16(16 * 128)));
  __builtin_memcpy(sums, &pair, sizeof(pair));
}

// 32 columns: d = max |x| / 127, inv = 127 / max |x| or 0 where d is, q = round-half-even(x * inv) within +-127. No maximum is a NaN;
// a NaN's q is 127.
PAGODA_SIMD void quantize_cell(const float* x, int8_t* q, float* d, int16_t* sums16) {
  const F32 x0 = load(x);
  const F32 x1 = load(x + kLanes);
  const float amax = reduce_max(max(abs(x0), max(abs(x1), zero())));
  *d = amax / 127.0F;
  const F32 inv = splat(*d > 0.0F ? 127.0F / amax : 0.0F);
  const auto quantize = [&](F32 v) __attribute__((always_inline)) {
    return round_to_i32(max(min(mul(v, inv), splat(127.0F)), splat(-127.0F)));
  };
  const __m256i bytes = narrow_i8(quantize(x0), quantize(x1));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  store_sums16(bytes, sums16);
}

void quantize_rows(const float* x, int ld, Range rows, Range cols, QuantRows out) {
  for (int row = rows.begin; row < rows.end; ++row) {
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(out.n_cols);
    const float* x_row = x + static_cast<size_t>(row) * static_cast<size_t>(ld);
    for (int col = cols.begin; col < cols.end; col += tensor::kCellCols) {
      const size_t to = at + static_cast<size_t>(col);
      quantize_cell(x_row + col, out.q + to, out.d + to / tensor::kCellCols, out.sums16 + to / 16);
    }
  }
}
