// What attention adds to simd.h on AVX-512 VNNI. The same names are in avx2/simd_attention.h.
// Not self-contained: include inside the region, after simd.h.

// Register blocks: rows x 16 tokens * vectors of scores; rows of values, and how many vectors each.
inline constexpr int kScoreRows = 8;
inline constexpr int kScoreVectors = 2;
inline constexpr int kBf16ScoreRows = 8;  // with three sums each
inline constexpr int kValueRows = 6;
inline constexpr int kExpVectors = 4;                                        // side by side
inline constexpr int kValuesAtOnce = 4;                                      // vectors of V in registers
constexpr int value_vectors(int sums) { return sums <= 6 ? 4 : 24 / sums; }  // of sums each

// Sixteen tokens' quads of K, as VPDPBUSD wants them: unsigned, k + 128. So a row's sum starts at kSumStart * (sum of
// its q).
struct KeyQuads {
  __m512i biased;
};
inline constexpr int32_t kSumStart = -128;

PAGODA_SIMD KeyQuads key_quads(I32 quads) {
  return {_mm512_xor_si512(quads.v, _mm512_set1_epi32(static_cast<int32_t>(0x80808080U)))};
}

// Exact sums of sixteen tokens. Typed as the instruction's result: with __m512i, gcc 12 copies every sum at every step.
struct QuadSums {
  typedef int Lanes __attribute__((vector_size(64)));
  Lanes v;

  PAGODA_SIMD static QuadSums from(int32_t start) { return {reinterpret_cast<Lanes>(_mm512_set1_epi32(start))}; }
  // Adds the dot of each token's quad with the four int8 at q.
  PAGODA_SIMD void add(KeyQuads keys, const int8_t* q) {
    int32_t four = 0;
    __builtin_memcpy(&four, q, sizeof(four));
    const __m512i sum = _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(v), keys.biased, _mm512_set1_epi32(four));
    v = reinterpret_cast<Lanes>(sum);
  }
  PAGODA_SIMD F32 total() const { return to_f32({reinterpret_cast<__m512i>(v)}); }
};
