// quantize_rows, once for every instruction set. Include inside a region, after simd_int8.h.

// Sums of 16 bytes each: PSADBW adds eight unsigned bytes, q + 128 here.
PAGODA_SIMD void store_sums16(__m256i q, int16_t* sums) {
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i sixteens = _mm256_add_epi16(eights, _mm256_unpackhi_epi64(eights, eights));
  const __m128i both = _mm_unpacklo_epi16(_mm256_castsi256_si128(sixteens), _mm256_extracti128_si256(sixteens, 1));
  const int32_t pair = _mm_cvtsi128_si32(_mm_sub_epi16(both, _mm_set1_epi16(16 * 128)));
  __builtin_memcpy(sums, &pair, sizeof(pair));
}

// Of 32 columns. Never NaN.
PAGODA_SIMD F32 magnitudes(const float* x) { return max(abs(load(x)), max(abs(load(x + kLanes)), zero())); }
// Sixteen columns. No x * inv is below -127, but for infinities, whose inv is 0; a NaN's q is 127.
PAGODA_SIMD I32 quantize_16(const float* x, F32 inv) { return round_to_i32(min(mul(load(x), inv), splat(127.0F))); }

// 32 columns: d = max |x| / 127, inv = 127 / max |x| or 0 where d is, q = round-half-even(x * inv) within +-127.
PAGODA_SIMD void quantize_cell(const float* x, int8_t* q, float* d, int16_t* sums16) {
  const float amax = reduce_max(magnitudes(x));
  *d = amax / 127.0F;
  const F32 inv = splat(*d > 0.0F ? 127.0F / amax : 0.0F);
  const __m256i bytes = narrow_i8(quantize_16(x, inv), quantize_16(x + kLanes, inv));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  store_sums16(bytes, sums16);
}

// Four cells side by side: one tree of maxima and two divisions for all.
PAGODA_SIMD void quantize_four_cells(const float* x, int8_t* q, float* d, int16_t* sums16) {
  constexpr int kCols = tensor::kCellCols;
  const __m128 amax =
      reduce_max(magnitudes(x), magnitudes(x + kCols), magnitudes(x + 2 * kCols), magnitudes(x + 3 * kCols));
  const __m128 most = _mm_set1_ps(127.0F);
  const __m128 d4 = _mm_div_ps(amax, most);
  _mm_storeu_ps(d, d4);
  alignas(16) float inv[4];
  _mm_store_ps(inv, _mm_and_ps(_mm_cmpgt_ps(d4, _mm_setzero_ps()), _mm_div_ps(most, amax)));
#pragma GCC unroll 2
  for (int i = 0; i < 4; i += 2) {
    const float* at = x + i * kCols;
    const F32 inv0 = splat(inv[i]);
    const F32 inv1 = splat(inv[i + 1]);
    const I32 bytes = narrow_i8(quantize_16(at, inv0), quantize_16(at + kLanes, inv0), quantize_16(at + kCols, inv1),
                                quantize_16(at + kCols + kLanes, inv1));
    store_i32(q + i * kCols, bytes);
    store_sums16(low_half(bytes), sums16 + 2 * i);
    store_sums16(high_half(bytes), sums16 + 2 * i + 2);
  }
}

void quantize_rows(const float* x, int ld, Range rows, Range cols, QuantRows out) {
  constexpr int kFour = 4 * tensor::kCellCols;
  for (int row = rows.begin; row < rows.end; ++row) {
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(out.n_cols);
    const float* x_row = x + static_cast<size_t>(row) * static_cast<size_t>(ld);
    int col = cols.begin;
    for (; col + kFour <= cols.end; col += kFour) {
      const size_t to = at + static_cast<size_t>(col);
      quantize_four_cells(x_row + col, out.q + to, out.d + to / tensor::kCellCols, out.sums16 + to / 16);
    }
    for (; col < cols.end; col += tensor::kCellCols) {
      const size_t to = at + static_cast<size_t>(col);
      quantize_cell(x_row + col, out.q + to, out.d + to / tensor::kCellCols, out.sums16 + to / 16);
    }
  }
}
