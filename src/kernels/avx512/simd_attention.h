// What attention adds to simd.h on AVX-512 VNNI. The same names are in avx2/simd_attention.h.

// Register blocks: rows x 16 tokens * vectors of scores, and rows x 16 dims * vectors of values.
inline constexpr int kScoreRows = 8;
inline constexpr int kScoreVectors = 2;
inline constexpr int kValueRows = 6;
inline constexpr int kValueVectors = 4;

// Sixteen tokens' quads of K, as VPDPBUSD wants them: unsigned, k + 128. So a row's sum starts at kSumStart * (sum of its q).
struct KeyQuads {
  __m512i biased;
};
inline constexpr int32_t kSumStart = -128;

PAGODA_SIMD KeyQuads key_quads(I32 quads) {
  return {_mm512_xor_si512(quads.v, _mm512_set1_epi32(static_cast<int32_t>(0x80808080U)))};
}
// sum + the dot of each token's quad with the four int8 at q: exact.
PAGODA_SIMD I32 dot_quads(I32 sum, KeyQuads keys, const int8_t* q) {
  int32_t four = 0;
  __builtin_memcpy(&four, q, sizeof(four));
  return {_mm512_dpbusd_epi32(sum.v, keys.biased, _mm512_set1_epi32(four))};
}
