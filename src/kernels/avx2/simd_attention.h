// What attention adds to simd.h on AVX2. The same names are in avx512/simd_attention.h.
// Not self-contained: include inside the region, after simd.h.

// Register blocks: rows x 16 tokens * vectors of scores; rows of values, and how many vectors each.
inline constexpr int kScoreRows = 4;
inline constexpr int kScoreVectors = 1;
inline constexpr int kBf16ScoreRows = 2;  // with three sums each
inline constexpr int kValueRows = 6;
inline constexpr int kExpVectors = 2;    // side by side
inline constexpr int kValuesAtOnce = 1;  // vectors of V in registers
// Of sums each. An fma takes 4 cycles: fewer than 8 registers of sums would wait for each other.
constexpr int value_vectors(int sums) { return sums == 1 ? 4 : sums <= 3 ? 2 : 1; }

// Sixteen tokens' quads of K, as VPMADDUBSW wants them: |k| unsigned, and k for its sign, which goes to q. Pairs of
// products stay within 2 * 127 * 127 = 32258, so its saturation never happens. A row's sum starts at kSumStart * (sum
// of its q).
struct KeyQuads {
  I32 quads;
  I32 magnitudes;
};
inline constexpr int32_t kSumStart = 0;

PAGODA_SIMD KeyQuads key_quads(I32 quads) { return {quads, {_mm256_abs_epi8(quads.lo), _mm256_abs_epi8(quads.hi)}}; }

// Exact sums of sixteen tokens. Typed as the instructions' result: with __m256i, gcc 12 copies every sum at every step.
struct QuadSums {
  typedef int Lanes __attribute__((vector_size(32)));
  Lanes lo, hi;

  PAGODA_SIMD static QuadSums from(int32_t start) {
    const auto all = reinterpret_cast<Lanes>(_mm256_set1_epi32(start));
    return {all, all};
  }
  // Adds the dot of each token's quad with the four int8 at q.
  PAGODA_SIMD void add(KeyQuads keys, const int8_t* q) {
    int32_t four = 0;
    __builtin_memcpy(&four, q, sizeof(four));
    const __m256i x = _mm256_set1_epi32(four);
    lo += dots(keys.quads.lo, keys.magnitudes.lo, x);
    hi += dots(keys.quads.hi, keys.magnitudes.hi, x);
  }
  PAGODA_SIMD F32 total() const { return to_f32({reinterpret_cast<__m256i>(lo), reinterpret_cast<__m256i>(hi)}); }

 private:
  PAGODA_SIMD static Lanes dots(__m256i quads, __m256i magnitudes, __m256i q) {
    const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(q, quads));
    return reinterpret_cast<Lanes>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};
