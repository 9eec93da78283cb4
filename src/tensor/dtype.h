// DType: the element types Pagoda computes with, and the bytes of every GGUF block of those types.
// Units: elements (a weight), bytes. A block is block_elements consecutive elements of a row, little-endian, unaligned.
// Source: the GGUF specification and ggml's block layouts; dequant_test.cc proves them against the gguf Python package.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pagoda::tensor {

// Dense, so that tables can be arrays by dtype. The file's own numbers are GgufType's.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
};
inline constexpr size_t kDTypeCount = 15;
// A cell is 32 consecutive elements of a row: the step of the int8 arithmetic. Every quantized block is 1 or 8 cells.
inline constexpr int64_t kCellElements = 32;

struct DTypeInfo {
  std::string_view name;   // as GGUF tools print it: "Q4_K"
  int64_t block_elements;  // 1 for the float types
  int64_t block_bytes;
  uint32_t gguf_type;  // the number in a GGUF tensor table
};
const DTypeInfo& info(DType type);
inline std::string_view to_string(DType type) { return info(type).name; }

constexpr bool is_float(DType type) { return type <= DType::kBF16; }

// Bytes of n_elements consecutive elements. Requires: a whole number of blocks (a row always is one), no overflow.
int64_t row_bytes(DType type, int64_t n_elements);

// What a GGUF file may name, computable or not: enough to bound its bytes and to say what it is.
struct GgufTypeInfo {
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
  std::optional<DType> dtype;  // empty: known, but not something Pagoda computes with
};
// nullptr if the number is nobody's.
const GgufTypeInfo* gguf_type_info(uint32_t gguf_type);
// "Q4_K", or "type 99" for a number nobody knows.
std::string gguf_type_name(uint32_t gguf_type);

// The blocks. f16 fields are raw bits (float16.h). Nibble order within 32 elements: the low nibbles are elements 0..15
// (0..31 in the K types), the high ones the rest.
#pragma pack(push, 1)
struct BlockQ4_0 {  // d * (q - 8)
  uint16_t d;
  uint8_t qs[16];
};
struct BlockQ4_1 {  // d * q + m
  uint16_t d, m;
  uint8_t qs[16];
};
struct BlockQ5_0 {  // d * (q - 16); bit i of qh is element i's fifth bit
  uint16_t d;
  uint32_t qh;
  uint8_t qs[16];
};
struct BlockQ5_1 {  // d * q + m
  uint16_t d, m;
  uint32_t qh;
  uint8_t qs[16];
};
struct BlockQ8_0 {  // d * q
  uint16_t d;
  int8_t qs[32];
};
struct BlockQ2_K {  // d * sc * q - dmin * m per 16; sc low, m high nibble
  uint8_t scales[16];
  uint8_t qs[64];
  uint16_t d, dmin;
};
struct BlockQ3_K {  // d * (sc - 32) * (q - 4) per 16; a set hmask bit is the third bit of q
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  uint16_t d;
};
struct BlockQ4_K {  // d * sc * q - dmin * m per 32; sc and m 6 bits each
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
struct BlockQ5_K {  // as Q4_K with a fifth bit in qh
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
struct BlockQ6_K {  // d * sc * (q - 32) per 16
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};
struct BlockIQ4_NL {  // d * kIq4Values[q]
  uint16_t d;
  uint8_t qs[16];
};
struct BlockIQ4_XS {  // d * (sc - 32) * kIq4Values[q] per 32
  uint16_t d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};
#pragma pack(pop)

static_assert(sizeof(BlockQ4_0) == 18);
static_assert(sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34);
static_assert(sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110);
static_assert(sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockIQ4_NL) == 18);
static_assert(sizeof(BlockIQ4_XS) == 136);

// The sixteen levels of the IQ4 types.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace pagoda::tensor
