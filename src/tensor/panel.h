// PanelMatrix: a weight matrix repacked for kernels. 16 consecutive output rows form a panel; inside it the columns run
// in cells of 32, so that one vector lane is one output row and its sum runs over the columns in order (design: fixed
// order). Bits per weight are the file type's, plus at most 5 % where 6-bit sub-scales become bytes. n_rows is padded
// to 16 with zeros. Written by weights/repack.cc, read by kernels.   Units: bytes unless said otherwise.   Plain data;
// owns nothing.
//
// A panel of a quantized type is [codes of every cell][sub-scales of every cell][d (, c) of every block], padded to 64:
//   codes   unsigned, u = code + offset (u indexes kIq4Values for the IQ4 types), as one or two planes of b = 8, 4, 2
//   or 1 bits.
//           A quad is 4 columns. A plane is 64-byte groups of 8/b quads: byte 4 * lane + column % 4 holds quad q's bits
//           at (q % (8/b)) * b, so that a shift and a mask give a VNNI operand, or its halves for AVX2, without a
//           shuffle.
//   scales  by ScaleKind, 16 lanes of bytes each
//   d, c    f16 [16 lanes] each, one pair per block (32 columns, or 256 for the K types); c only with a minimum
// A panel of a float type is [column][16 lanes] of that type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dequant.h"
#include "tensor/dtype.h"

namespace pagoda::tensor {

inline constexpr int kPanelRows = 16;
inline constexpr int kCellCols = 32;
inline constexpr int kQuadBytes = kPanelRows * 4;  // the codes of one quad, a byte each

enum class ScaleKind : uint8_t {
  kNone,        // sc = 1 (m = 1)
  kCell,        // int8 sc[16] per cell: IQ4_XS
  kHalves,      // int8 sc[half][16] per cell: Q3_K, Q6_K
  kCellMin,     // uint8 sc[16], m[16] per cell: Q4_K, Q5_K
  kHalvesMin4,  // uint8 [half][16] per cell, sc in the low nibble and m in the high one: Q2_K
};

// How a quantized type lies in a panel.
struct PanelFormat {
  int low_bits = 0;   // bits of the first plane
  int high_bits = 0;  // bits of the second, 0 if there is none
  int offset = 0;     // u - code; for the IQ4 types of u's table value made unsigned
  bool table = false;
  ScaleKind scales = ScaleKind::kNone;
  bool minimum = false;
  int block_cells = 1;

  constexpr int bits() const { return low_bits + high_bits; }
  constexpr size_t low_bytes() const { return static_cast<size_t>(low_bits) * kQuadBytes; }  // of one cell
  constexpr size_t code_bytes() const { return static_cast<size_t>(bits()) * kQuadBytes; }   // of one cell
  constexpr size_t scale_bytes() const {                                                     // of one cell
    return scales == ScaleKind::kNone ? 0 : scales == ScaleKind::kCell ? kPanelRows : 2 * kPanelRows;
  }
  constexpr size_t block_bytes() const { return minimum ? 4 * kPanelRows : 2 * kPanelRows; }
};

constexpr PanelFormat panel_format(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return {.low_bits = 4, .offset = 8};
    case DType::kQ4_1:
      return {.low_bits = 4, .minimum = true};
    case DType::kQ5_0:
      return {.low_bits = 4, .high_bits = 1, .offset = 16};
    case DType::kQ5_1:
      return {.low_bits = 4, .high_bits = 1, .minimum = true};
    case DType::kQ8_0:
      return {.low_bits = 8, .offset = 128};
    case DType::kQ2_K:
      return {.low_bits = 2, .scales = ScaleKind::kHalvesMin4, .minimum = true, .block_cells = 8};
    case DType::kQ3_K:
      return {.low_bits = 2, .high_bits = 1, .offset = 4, .scales = ScaleKind::kHalves, .block_cells = 8};
    case DType::kQ4_K:
      return {.low_bits = 4, .scales = ScaleKind::kCellMin, .minimum = true, .block_cells = 8};
    case DType::kQ5_K:
      return {.low_bits = 4, .high_bits = 1, .scales = ScaleKind::kCellMin, .minimum = true, .block_cells = 8};
    case DType::kQ6_K:
      return {.low_bits = 4, .high_bits = 2, .offset = 32, .scales = ScaleKind::kHalves, .block_cells = 8};
    case DType::kIQ4_NL:
      return {.low_bits = 4, .offset = 128, .table = true};
    case DType::kIQ4_XS:
      return {.low_bits = 4, .offset = 128, .table = true, .scales = ScaleKind::kCell, .block_cells = 8};
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  return {};
}

// Where the parts of a quantized panel start.
struct PanelParts {
  size_t scales = 0;
  size_t blocks = 0;
  size_t end = 0;  // before padding
};

constexpr PanelParts panel_parts(const PanelFormat& format, int n_cols) {
  const size_t cells = static_cast<size_t>(n_cols) / kCellCols;
  const size_t scales = cells * format.code_bytes();
  const size_t blocks = scales + cells * format.scale_bytes();
  return {scales, blocks, blocks + cells / static_cast<size_t>(format.block_cells) * format.block_bytes()};
}

struct PanelMatrix {
  DType dtype = DType::kF32;
  int n_rows = 0;                   // outputs, without padding
  int n_cols = 0;                   // inputs; a multiple of 32 (of 256 for K types)
  const std::byte* data = nullptr;  // [n_panels][panel_bytes], 64-byte aligned
  size_t panel_bytes = 0;           // panel_bytes(dtype, n_cols)

  int n_panels() const { return (n_rows + kPanelRows - 1) / kPanelRows; }
  size_t bytes() const { return static_cast<size_t>(n_panels()) * panel_bytes; }
  const std::byte* panel(int i) const { return data + static_cast<size_t>(i) * panel_bytes; }
};

// Bytes of one panel, a multiple of 64. Requires n_cols % 32 == 0 (% 256 for K types).
size_t panel_bytes(DType type, int n_cols);

// One cell of 16 rows into a quantized panel: rows[lane] is that lane's cell, as decode_cell gives it.
void pack_panel_cell(DType type, int n_cols, int cell, const QuantCell rows[kPanelRows], std::byte* panel);

// The reverse for one lane: exactly the QuantCell that was packed. Requires a quantized type.
void unpack_panel_cell(DType type, int n_cols, const std::byte* panel, int cell, int lane, QuantCell* out);

// One row of any type, exactly as dequantize_row gives it; out [n_cols].
void dequantize_panel_row(const PanelMatrix& matrix, int row, float* out);

}  // namespace pagoda::tensor
