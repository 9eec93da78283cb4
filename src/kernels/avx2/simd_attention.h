// What attention adds to simd.h on AVX2. The same names are in avx512/simd_attention.h.

// Register blocks: rows x 16 tokens * vectors of scores, and rows x 16 dims * vectors of values.
inline constexpr int kScoreRows = 4;
inline constexpr int kScoreVectors = 1;
inline constexpr int kValueRows = 6;
inline constexpr int kValueVectors = 1;

// Sixteen tokens' quads of K, as VPMADDUBSW wants them: |k| unsigned, and k for its sign, which goes to q. Pairs of products stay
// within 2 * 127 * 127 = 32258, so its saturation never happens. A row's sum starts at kSumStart * (sum of its q).
struct KeyQuads {
  I32 quads;
  I32 magnitudes;
};
inline constexpr int32_t kSumStart = 0;

PAGODA_SIMD KeyQuads key_quads(I32 quads) { return {quads, {_mm256_abs_epi8(quads.lo), _mm256_abs_epi8(quads.hi)}}; }
PAGODA_SIMD __m256i dot_half(__m256i sum, __m256i quads, __m256i magnitudes, __m256i q) {
  const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(q, quads));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// sum + the dot of each token's quad with the four int8 at q: exact.
PAGODA_SIMD I32 dot_quads(I32 sum, KeyQuads keys, const int8_t* q) {
  int32_t four = 0;
  __builtin_memcpy(&four, q, sizeof(four));
  const __m256i x = _mm256_set1_epi32(four);
  return {dot_half(sum.lo, keys.quads.lo, keys.magnitudes.lo, x),
          dot_half(sum.hi, keys.quads.hi, keys.magnitudes.hi, x)};
}
