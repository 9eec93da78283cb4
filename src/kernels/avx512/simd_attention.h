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
constexpr int weighted_vectors(int rows) { return rows <= 3 ? 4 : 2; }       // of WeightedSum each

// Sixteen tokens' quads of K, as VPDPBUSD wants them: unsigned, k + 128. So a row's sum starts at kSumStart * (sum of
// its q).
struct KeyQuads {
  __m512i biased;
};
inline constexpr int32_t kSumStart = -128;

PAGODA_SIMD KeyQuads key_quads(I32 quads) {
  return {_mm512_xor_si512(quads.v, _mm512_set1_epi32(static_cast<int32_t>(0x80808080U)))};
}

// Sixteen tokens' 8 dims in 4 bits: two quads of u. The sum of q * (2 u - 15) is twice that of q * u, less 15 * (sum of q).
struct KeyNibbles {
  __m512i low, high;

  PAGODA_SIMD static KeyNibbles from(I32 cells) {
    const __m512i mask = _mm512_set1_epi32(0x0F0F0F0F);
    return {_mm512_and_si512(cells.v, mask), _mm512_and_si512(_mm512_srli_epi32(cells.v, 4), mask)};
  }
};

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
  // Adds the dots with the eight int8 at q.
  PAGODA_SIMD void add(KeyNibbles keys, const int8_t* q) {
    int32_t four[2];
    __builtin_memcpy(four, q, sizeof(four));
    __m512i sum = _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(v), keys.low, _mm512_set1_epi32(four[0]));
    sum = _mm512_dpbusd_epi32(sum, keys.high, _mm512_set1_epi32(four[1]));
    v = reinterpret_cast<Lanes>(sum);
  }
  PAGODA_SIMD F32 total() const { return to_f32({reinterpret_cast<__m512i>(v)}); }
  PAGODA_SIMD F32 doubled(int32_t start) const {
    return to_f32({_mm512_add_epi32(_mm512_slli_epi32(reinterpret_cast<__m512i>(v), 1), _mm512_set1_epi32(start))});
  }
};

// Byte `index` of each lane, signed.
PAGODA_SIMD I32 signed_byte(I32 a, int index) {
  return {_mm512_srai_epi32(_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(24 - 8 * index)), 24)};
}

// Every lane's word, shifted right by `bits` in [0, 28]: its low 4 bits.
PAGODA_SIMD I32 nibble(I32 a, int bits) {
  return {_mm512_and_si512(_mm512_srl_epi32(a.v, _mm_cvtsi32_si128(bits)), _mm512_set1_epi32(15))};
}

// P.V in integers: weights of 15 bits are two planes of bytes for VPDPBUSD, q = 256 * high + low, so that V needs no widening.
// The weights of 4 tokens take 8 bytes: low[4], high[4].
PAGODA_SIMD void store_weight_quads(void* to, I32 first, I32 second) {  // of 32 tokens
  const __m512i planes = _mm512_set4_epi32(-1, -1, 0x0D090501, 0x0C080400);
  const __m512i even_words = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
  const __m512i a = _mm512_shuffle_epi8(first.v, planes);
  const __m512i b = _mm512_shuffle_epi8(second.v, planes);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi64(a, even_words, b));
}
struct WeightQuad {
  __m512i low, high;

  PAGODA_SIMD static WeightQuad at(const std::byte* p) {
    int32_t low_word = 0;  // loaded apart: GCC would shift and broadcast one load in registers
    int32_t high_word = 0;
    __builtin_memcpy(&low_word, p, sizeof(low_word));
    __builtin_memcpy(&high_word, p + 4, sizeof(high_word));
    return {_mm512_set1_epi32(low_word), _mm512_set1_epi32(high_word)};
  }
};
inline constexpr int kSumDims = 16;
inline constexpr int kQuadsAtOnce = 4;  // in registers
// Four tokens of kSumDims dims.
struct ValueQuad {
  __m512i v;

  PAGODA_SIMD static ValueQuad at(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
};
// The same of codes u in 4 bits, and of the dims 16 higher.
struct ValueNibbles {
  ValueQuad low, high;

  PAGODA_SIMD static ValueNibbles at(const std::byte* p) {
    const KeyNibbles codes = KeyNibbles::from({_mm512_loadu_si512(p)});
    return {{codes.low}, {codes.high}};
  }
};
// Exact sums of kSumDims dims. Typed as QuadSums is.
struct WeightedSum {
  QuadSums::Lanes low, high;

  PAGODA_SIMD static WeightedSum empty() { return {QuadSums::Lanes{}, QuadSums::Lanes{}}; }
  PAGODA_SIMD void add(ValueQuad values, WeightQuad weights) {
    low = dots(low, weights.low, values.v);
    high = dots(high, weights.high, values.v);
  }
  // The sum, or twice the sum and `start`, in units.
  PAGODA_SIMD void store(float* to, float unit) const { store(to, unit, total()); }
  PAGODA_SIMD void store_doubled(float* to, float unit, int32_t start) const {
    store(to, unit, _mm512_add_epi32(_mm512_slli_epi32(total(), 1), _mm512_set1_epi32(start)));
  }

 private:
  PAGODA_SIMD __m512i total() const {
    return _mm512_add_epi32(_mm512_slli_epi32(reinterpret_cast<__m512i>(high), 8), reinterpret_cast<__m512i>(low));
  }
  PAGODA_SIMD static void store(float* to, float unit, __m512i sum) {
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(unit)));
  }
  PAGODA_SIMD static QuadSums::Lanes dots(QuadSums::Lanes sum, __m512i weights, __m512i values) {
    return reinterpret_cast<QuadSums::Lanes>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), weights, values));
  }
};

// Lanes i without bit kDistance: x[i] + x[i + kDistance]; with it: x[i - kDistance] - x[i].
template <int kDistance>
PAGODA_SIMD F32 butterfly(F32 a) {
  __m512 other;
  constexpr auto sign = [](int lane) { return (lane & kDistance) != 0 ? -1.0f : 1.0f; };
  const __m512 signs = _mm512_setr_ps(sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7), sign(8),
                                      sign(9), sign(10), sign(11), sign(12), sign(13), sign(14), sign(15));
  if constexpr (kDistance == 1) other = _mm512_permute_ps(a.v, 0xB1);
  if constexpr (kDistance == 2) other = _mm512_permute_ps(a.v, 0x4E);
  if constexpr (kDistance == 4) other = _mm512_shuffle_f32x4(a.v, a.v, 0xB1);
  if constexpr (kDistance == 8) other = _mm512_shuffle_f32x4(a.v, a.v, 0x4E);
  return {_mm512_fmadd_ps(a.v, signs, other)};  // rounds as the sum does
}
