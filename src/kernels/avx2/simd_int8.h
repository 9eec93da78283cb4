// Integer operations of the matmuls on AVX2, beside simd.h. The same names are in avx512/simd_int8.h.
// 64 bytes are an I32: lane r holds the four codes of row r and one quad of columns.
// Not self-contained: include inside a region (begin.h).

// Codes of 8 bits reach Dot signed; no correction is needed.
inline constexpr bool kSignedBytes = true;
// Rows of activations and panels of weights that one inner loop multiplies: each operand is loaded once for the other.
inline constexpr int kMatmulRows = 4;
inline constexpr int kMatmulPanels = 1;
// The same of int8 arithmetic over expanded weights; how many rows read panels as they lie, and in what blocks.
inline constexpr int kInt8Rows = 4;
inline constexpr int kInt8Panels = 1;
inline constexpr int kInt8FewRows = 4;
inline constexpr int kInt8FewBlock = 4;

template <size_t kBytes>
PAGODA_SIMD void prefetch_bytes(const std::byte* p) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

// a | (b & mask)
PAGODA_SIMD I32 or_masked(I32 a, I32 b, I32 mask) { return bit_or(a, bit_and(b, mask)); }
PAGODA_SIMD I32 bit_xor(I32 a, I32 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
// table[index] for bytes of index in [0, 16).
PAGODA_SIMD I32 lookup(const int8_t* table, I32 index) {
  const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(entries, index.lo), _mm256_shuffle_epi8(entries, index.hi)};
}
inline constexpr bool kFloatLookup = false;  // avx512/simd_int8.h has lookup(F32 values, I32 index)
// Sixteen bytes from memory.
PAGODA_SIMD I32 widen_u8_i32(const void* p) {
  const char* q = static_cast<const char*>(p);
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + 8)))};
}
PAGODA_SIMD F32 widen_u8(const void* p) { return to_f32(widen_u8_i32(p)); }

// Thirty-two values within int8, in order.
PAGODA_SIMD __m256i narrow_i8(I32 a, I32 b) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a.lo, a.hi), _mm256_packs_epi32(b.lo, b.hi));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Codes of up to 4 bits are multiplied alike.
inline constexpr int dot_class(int bits) { return bits < 4 ? 4 : bits; }

// Sums of products over up to 8 quads in order: exact. kBits: of the codes.
// VPMADDUBSW adds two products in 16 bits with saturation, so pairs must stay within +-32767; |activation| <= 127.
//   unsigned codes: 2 * 15 * 127 = 3810, eight of them fit; 2 * 31 * 127 = 7874, four; 2 * 63 * 127 = 16002, two
//   signed bytes:   |code| as the unsigned operand, sign(code) on the activation: 2 * 128 * 127 = 32512, one
template <int kBits>
struct Dot {
  I32 words;  // 16-bit sums since the last flush
  I32 sum;

  static constexpr int kQuadsPerFlush = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;

  PAGODA_SIMD static Dot from(I32 start) { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}, start}; }
  // Quad kQuad of a cell: `codes` with the four activations at a.
  template <int kQuad>
  PAGODA_SIMD void step(I32 codes, const int8_t* a) {
    int32_t four = 0;
    __builtin_memcpy(&four, a, sizeof(four));
    const __m256i x = _mm256_set1_epi32(four);
    words.lo = _mm256_add_epi16(words.lo, products(codes.lo, x));
    words.hi = _mm256_add_epi16(words.hi, products(codes.hi, x));
    asm("" : "+x"(words.lo), "+x"(words.hi));  // a chain: GCC would make it a tree of sums, and spill
    if constexpr ((kQuad + 1) % kQuadsPerFlush == 0) flush();
  }
  PAGODA_SIMD I32 total() const {
    if constexpr (kQuadsPerFlush < 8) return sum;
    Dot copy = *this;
    copy.flush();
    return copy.sum;
  }

 private:
  PAGODA_SIMD static __m256i products(__m256i codes, __m256i x) {
    if constexpr (kBits < 8) return _mm256_maddubs_epi16(codes, x);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  }
  PAGODA_SIMD void flush() {
    const __m256i ones = _mm256_set1_epi16(1);
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(words.lo, ones));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(words.hi, ones));
    words = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  }
};
