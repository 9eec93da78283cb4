// Dequantization: what a GGUF block means, in plain scalar code. Everything faster is tested against this.
// Accuracy: bit for bit what the `gguf` Python package computes (golden vectors: tests/golden/dequant).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace pagoda::tensor {

// One cell (32 consecutive elements) of a quantized row, as the int8 arithmetic reads it. Element i of half h = i / 16
// is
//   (d * sc[h]) * codes[i]                  without a minimum (c is 0, m is 0)
//   (d * sc[h]) * codes[i] + c * m[h]       with one (Q4_1 Q5_1: c = the block's m, m = 1; Q2_K Q4_K Q5_K: c = -dmin)
// codes are signed as the type defines them (Q4_0: q - 8, Q6_K: q - 32, IQ4: its table's value, Q4_K: q). d * sc and c
// * m are exact in f32, and so is (d * sc) * code where there is a minimum: an element rounds once.
struct QuantCell {
  int8_t codes[32];
  int32_t sc[2];
  int32_t m[2];
  float d;
  float c;
};

// Types whose cells carry a minimum (c * m).
constexpr bool has_minimum(DType type) {
  return type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ2_K || type == DType::kQ4_K ||
         type == DType::kQ5_K;
}

// Cell `cell_index` of the row that starts at row_blocks (bytes, unaligned). Requires a quantized type (CHECK).
void decode_cell(DType type, const std::byte* row_blocks, int64_t cell_index, QuantCell* out);

// The 32 elements that a cell means.
void expand_cell(DType type, const QuantCell& cell, float* out);

// out[0..n_elements) from the row's blocks. Requires a whole number of blocks (CHECK). `blocks` and `out` may not
// overlap.
void dequantize_row(DType type, const std::byte* blocks, int64_t n_elements, float* out);

}  // namespace pagoda::tensor
