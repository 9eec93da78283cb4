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
constexpr int weighted_vectors(int rows) { return rows <= 3 ? 4 : 2; }  // of WeightedSum each

// Sixteen tokens' quads of K, as VPMADDUBSW wants them: |k| unsigned, and k for its sign, which goes to q. Pairs of
// products stay within 2 * 127 * 127 = 32258, so its saturation never happens. A row's sum starts at kSumStart * (sum
// of its q).
struct KeyQuads {
  I32 quads;
  I32 magnitudes;
};
inline constexpr int32_t kSumStart = 0;

PAGODA_SIMD KeyQuads key_quads(I32 quads) { return {quads, {_mm256_abs_epi8(quads.lo), _mm256_abs_epi8(quads.hi)}}; }

// Sixteen tokens' 8 dims in 4 bits: two quads of u. The sum of q * (2 u - 15) is twice that of q * u, less 15 * (sum of q).
struct KeyNibbles {
  I32 low, high;

  PAGODA_SIMD static KeyNibbles from(I32 cells) {
    const I32 mask = splat_i32(0x0F0F0F0F);
    const I32 shifted{_mm256_srli_epi32(cells.lo, 4), _mm256_srli_epi32(cells.hi, 4)};
    return {bit_and(cells, mask), bit_and(shifted, mask)};
  }
};

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
  // Adds the dots with the eight int8 at q.
  PAGODA_SIMD void add(KeyNibbles keys, const int8_t* q) {
    int32_t four[2];
    __builtin_memcpy(four, q, sizeof(four));
    const __m256i first = _mm256_set1_epi32(four[0]);
    const __m256i second = _mm256_set1_epi32(four[1]);
    lo += dots(keys.low.lo, first, keys.high.lo, second);
    hi += dots(keys.low.hi, first, keys.high.hi, second);
  }
  PAGODA_SIMD F32 total() const { return to_f32({reinterpret_cast<__m256i>(lo), reinterpret_cast<__m256i>(hi)}); }
  PAGODA_SIMD F32 doubled(int32_t start) const {
    const I32 sum{reinterpret_cast<__m256i>(lo), reinterpret_cast<__m256i>(hi)};
    return to_f32(::pagoda::kernels::avx2::add(shift_left<1>(sum), splat_i32(start)));
  }

 private:
  PAGODA_SIMD static Lanes dots(__m256i quads, __m256i magnitudes, __m256i q) {
    const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(q, quads));
    return reinterpret_cast<Lanes>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  // Of two quads of u: four products stay within 4 * 15 * 127.
  PAGODA_SIMD static Lanes dots(__m256i a, __m256i q_a, __m256i b, __m256i q_b) {
    const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, q_a), _mm256_maddubs_epi16(b, q_b));
    return reinterpret_cast<Lanes>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

// Byte `index` of each lane, signed.
PAGODA_SIMD I32 signed_byte(I32 a, int index) {
  const __m128i left = _mm_cvtsi32_si128(24 - 8 * index);
  return {_mm256_srai_epi32(_mm256_sll_epi32(a.lo, left), 24), _mm256_srai_epi32(_mm256_sll_epi32(a.hi, left), 24)};
}

// Every lane's word, shifted right by `bits` in [0, 28]: its low 4 bits.
PAGODA_SIMD I32 nibble(I32 a, int bits) {
  const __m128i right = _mm_cvtsi32_si128(bits);
  return bit_and({_mm256_srl_epi32(a.lo, right), _mm256_srl_epi32(a.hi, right)}, splat_i32(15));
}

// P.V in integers: 16-bit products of VPMADDWD. V is widened by shifts, which part the even tokens of a quad from the odd
// ones; so the weights of 4 tokens take 8 bytes: int16 of tokens 0, 2 and of 1, 3.
PAGODA_SIMD void store_weight_quads(std::byte* to, I32 tokens) {                                 // of 16 tokens
  const __m256i parted = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                          0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(tokens.lo, tokens.hi), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(words, parted));
}
PAGODA_SIMD void store_weight_quads(std::byte* to, I32 first, I32 second) {  // of 32 tokens
  store_weight_quads(to, first);
  store_weight_quads(to + 32, second);
}
struct WeightQuad {
  __m256i even, odd;

  PAGODA_SIMD static WeightQuad at(const std::byte* p) {
    int32_t even_word = 0;  // loaded apart: GCC would shift and broadcast one load in registers
    int32_t odd_word = 0;
    __builtin_memcpy(&even_word, p, sizeof(even_word));
    __builtin_memcpy(&odd_word, p + 4, sizeof(odd_word));
    return {_mm256_set1_epi32(even_word), _mm256_set1_epi32(odd_word)};
  }
};
inline constexpr int kSumDims = 8;
inline constexpr int kQuadsAtOnce = 1;  // in registers
// Four tokens of kSumDims dims.
struct ValueQuad {
  __m256i even, odd;

  PAGODA_SIMD static ValueQuad at(const std::byte* p) {
    const __m256i quads = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_srai_epi16(_mm256_slli_epi16(quads, 8), 8), _mm256_srai_epi16(quads, 8)};
  }
};
// The same of codes u in 4 bits, and of the dims 16 higher.
struct ValueNibbles {
  ValueQuad low, high;

  PAGODA_SIMD static ValueNibbles at(const std::byte* p) {
    const __m256i cells = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i mask = _mm256_set1_epi16(0x000F);
    return {{_mm256_and_si256(cells, mask), _mm256_and_si256(_mm256_srli_epi16(cells, 8), mask)},
            {_mm256_and_si256(_mm256_srli_epi16(cells, 4), mask), _mm256_srli_epi16(cells, 12)}};
  }
};
// Exact sums of kSumDims dims. Typed as QuadSums is.
struct WeightedSum {
  QuadSums::Lanes sum;

  PAGODA_SIMD static WeightedSum empty() { return {QuadSums::Lanes{}}; }
  PAGODA_SIMD void add(ValueQuad values, WeightQuad weights) {
    sum += reinterpret_cast<QuadSums::Lanes>(_mm256_madd_epi16(values.even, weights.even));
    sum += reinterpret_cast<QuadSums::Lanes>(_mm256_madd_epi16(values.odd, weights.odd));
  }
  // The sum, or twice the sum and `start`, in units.
  PAGODA_SIMD void store(float* to, float unit) const { store(to, unit, reinterpret_cast<__m256i>(sum)); }
  PAGODA_SIMD void store_doubled(float* to, float unit, int32_t start) const {
    const __m256i doubled = _mm256_slli_epi32(reinterpret_cast<__m256i>(sum), 1);
    store(to, unit, _mm256_add_epi32(doubled, _mm256_set1_epi32(start)));
  }

 private:
  PAGODA_SIMD static void store(float* to, float unit, __m256i total) {
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(total), _mm256_set1_ps(unit)));
  }
};

// Lanes i without bit kDistance: x[i] + x[i + kDistance]; with it: x[i - kDistance] - x[i].
template <int kDistance>
PAGODA_SIMD __m256 half_butterfly(__m256 a) {
  __m256 other;
  constexpr auto sign = [](int lane) { return (lane & kDistance) != 0 ? -1.0f : 1.0f; };
  const __m256 signs = _mm256_setr_ps(sign(0), sign(1), sign(2), sign(3), sign(4), sign(5), sign(6), sign(7));
  if constexpr (kDistance == 1) other = _mm256_permute_ps(a, 0xB1);
  if constexpr (kDistance == 2) other = _mm256_permute_ps(a, 0x4E);
  if constexpr (kDistance == 4) other = _mm256_permute2f128_ps(a, a, 1);
  return _mm256_fmadd_ps(a, signs, other);  // rounds as the sum does
}
template <int kDistance>
PAGODA_SIMD F32 butterfly(F32 a) {
  if constexpr (kDistance == 8)
    return {_mm256_add_ps(a.lo, a.hi), _mm256_sub_ps(a.lo, a.hi)};
  else
    return {half_butterfly<kDistance>(a.lo), half_butterfly<kDistance>(a.hi)};
}
