// Integer operations of the matmuls on AVX-512 VNNI, beside simd.h. The same names are in avx2/simd_int8.h.
// 64 bytes are an I32: lane r holds the four codes of row r and one quad of columns.
// Not self-contained: include inside a region (begin.h).

// Codes of 8 bits reach Dot as they are stored (u = code + 128); the sum is corrected by -128 * (sum of activations).
inline constexpr bool kSignedBytes = false;
// Rows of activations and panels of weights that one inner loop multiplies: each operand is loaded once for the other.
inline constexpr int kMatmulRows = 4;
inline constexpr int kMatmulPanels = 2;
// The same of int8 arithmetic over expanded weights; how many rows read panels as they lie, and in what blocks.
inline constexpr int kInt8Rows = 7;
inline constexpr int kInt8Panels = 2;
inline constexpr int kInt8FewRows = 16;
inline constexpr int kInt8FewBlock = 8;

template <size_t kBytes>
PAGODA_SIMD void prefetch_bytes(const std::byte* p) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

// a | (b & mask)
PAGODA_SIMD I32 or_masked(I32 a, I32 b, I32 mask) { return {_mm512_ternarylogic_epi32(a.v, b.v, mask.v, 0xF8)}; }
PAGODA_SIMD I32 bit_xor(I32 a, I32 b) { return {_mm512_xor_si512(a.v, b.v)}; }
// table[index] for bytes of index in [0, 16).
PAGODA_SIMD I32 lookup(const int8_t* table, I32 index) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), index.v)};
}
// values[index % 16] of every lane.
inline constexpr bool kFloatLookup = true;
PAGODA_SIMD F32 lookup(F32 values, I32 index) { return {_mm512_permutexvar_ps(index.v, values.v)}; }
// Sixteen bytes from memory.
PAGODA_SIMD I32 widen_u8_i32(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
PAGODA_SIMD F32 widen_u8(const void* p) { return to_f32(widen_u8_i32(p)); }

// Thirty-two values within int8, in order.
PAGODA_SIMD __m256i narrow_i8(I32 a, I32 b) {
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(b.v), _mm512_cvtepi32_epi8(a.v));
}

// Codes of all widths are multiplied alike.
inline constexpr int dot_class(int) { return 8; }

// Sums of products over up to 8 quads in order: exact. kBits: of the codes.
template <int kBits>
struct Dot {
  __m512i sum;

  PAGODA_SIMD static Dot from(I32 start) { return {start.v}; }
  // Quad kQuad of a cell: `codes` with the four activations at a.
  template <int kQuad>
  PAGODA_SIMD void step(I32 codes, const int8_t* a) {
    int32_t four = 0;
    __builtin_memcpy(&four, a, sizeof(four));
    sum = _mm512_dpbusd_epi32(sum, codes.v, _mm512_set1_epi32(four));
  }
  PAGODA_SIMD I32 total() const { return {sum}; }
};
