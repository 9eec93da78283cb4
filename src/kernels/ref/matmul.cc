// The definition of matmul, quantize_rows and gather_row: one output, one column after the other.
#include <algorithm>
#include <cmath>

#include "kernels/bf16_rule.h"
#include "kernels/table.h"
#include "tensor/dequant.h"
#include "tensor/float16.h"
#include "tensor/panel.h"

namespace pagoda::kernels::ref {
namespace {

using tensor::kCellCols;
using tensor::kPanelRows;
using tensor::PanelMatrix;
using tensor::QuantCell;

void quantize_cell(const float* x, int8_t* q, float* d, int16_t* sums16) {
  float amax = 0.0F;
  for (int i = 0; i < kCellCols; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  *d = amax / 127.0F;
  const float inv = *d == 0.0F ? 0.0F : 127.0F / amax;
  sums16[0] = sums16[1] = 0;
  for (int i = 0; i < kCellCols; ++i) {
    float v = x[i] * inv;
    v = v < 127.0F ? v : 127.0F;  // also what a NaN becomes
    v = v > -127.0F ? v : -127.0F;
    q[i] = static_cast<int8_t>(std::lrint(v));
    sums16[i / 16] = static_cast<int16_t>(sums16[i / 16] + q[i]);
  }
}

void quantize_rows(const float* x, int ld, Range rows, Range cols, QuantRows out) {
  for (int row = rows.begin; row < rows.end; ++row) {
    const auto at = static_cast<size_t>(row) * static_cast<size_t>(out.n_cols);
    const float* x_row = x + static_cast<size_t>(row) * static_cast<size_t>(ld);
    for (int col = cols.begin; col < cols.end; col += kCellCols) {
      const size_t to = at + static_cast<size_t>(col);
      quantize_cell(x_row + col, out.q + to, out.d + to / kCellCols, out.sums16 + to / 16);
    }
  }
}

void bf16_rows(const float* x, int ld, Range rows, Range cols, uint16_t* out, int ld_out) {
  for (int row = rows.begin; row < rows.end; ++row) {
    const float* from = x + static_cast<size_t>(row) * static_cast<size_t>(ld);
    uint16_t* to = out + static_cast<size_t>(row) * static_cast<size_t>(ld_out);
    for (int col = cols.begin; col < cols.end; ++col) to[col] = round_bf16(from[col]);
  }
}

// One row of activations against one row of weights; a cell is one part, or two where sub-scales are per half.
float dot_int8(const QuantCell* w, const QuantRows& x, int row, const tensor::PanelFormat& format) {
  const size_t n_cells = static_cast<size_t>(x.n_cols) / kCellCols;
  const int8_t* q = x.q + static_cast<size_t>(row) * static_cast<size_t>(x.n_cols);
  const float* d = x.d + static_cast<size_t>(row) * n_cells;
  const int n_parts =
      format.scales == tensor::ScaleKind::kHalves || format.scales == tensor::ScaleKind::kHalvesMin4 ? 2 : 1;
  float acc = 0.0F;
  for (size_t cell = 0; cell < n_cells; ++cell, ++w, q += kCellCols) {
    for (int part = 0; part < n_parts; ++part) {
      int32_t dot = 0;
      int32_t sum = 0;
      for (int i = part * kCellCols / n_parts; i < (part + 1) * kCellCols / n_parts; ++i) {
        dot += w->codes[i] * q[i];
        sum += q[i];
      }
      const float scaled = std::fma(static_cast<float>(dot), static_cast<float>(w->sc[part]) * w->d, 0.0F);
      acc = std::fma(scaled, d[cell], acc);
      if (format.minimum) acc = std::fma(static_cast<float>(w->m[part]) * w->c, d[cell] * static_cast<float>(sum), acc);
    }
  }
  return acc;
}

void matmul_int8(const PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, float* y, int ld_y,
                 std::byte* scratch) {
  auto* cells = reinterpret_cast<QuantCell*>(scratch);
  const int n_cells = w.n_cols / kCellCols;
  for (int n = panels.begin * kPanelRows; n < std::min(panels.end * kPanelRows, w.n_rows); ++n) {
    for (int i = 0; i < n_cells; ++i) {
      tensor::unpack_panel_cell(w.dtype, w.n_cols, w.panel(n / kPanelRows), i, n % kPanelRows, &cells[i]);
    }
    for (int row = rows.begin; row < rows.end; ++row) {
      y[static_cast<size_t>(row) * static_cast<size_t>(ld_y) + static_cast<size_t>(n)] =
          dot_int8(cells, x.quant, row, tensor::panel_format(w.dtype));
    }
  }
}

void matmul_f32(const PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, float* y, int ld_y,
                std::byte* scratch) {
  auto* weights = reinterpret_cast<float*>(scratch);
  for (int n = panels.begin * kPanelRows; n < std::min(panels.end * kPanelRows, w.n_rows); ++n) {
    tensor::dequantize_panel_row(w, n, weights);
    for (int row = rows.begin; row < rows.end; ++row) {
      const float* x_row = x.x + static_cast<size_t>(row) * static_cast<size_t>(x.ld);
      float acc = 0.0F;
      for (int k = 0; k < w.n_cols; ++k) acc = std::fma(weights[k], x_row[k], acc);
      y[static_cast<size_t>(row) * static_cast<size_t>(ld_y) + static_cast<size_t>(n)] = acc;
    }
  }
}

void matmul_in_int8(const PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, float* y, int ld_y,
                    std::byte* scratch) {
  return tensor::is_float(w.dtype) ? matmul_f32(w, panels, x, rows, y, ld_y, scratch)
                                   : matmul_int8(w, panels, x, rows, y, ld_y, scratch);
}

// One row of activations against one row of weights: both bf16, the weights widened.
float dot_bf16(const float* w, const uint16_t* x, int n_cols) {
  float acc = 0.0F;
  for (int cell = 0; cell < n_cols; cell += kCellCols) {
    float even = 0.0F;
    float odd = 0.0F;
    for (int k = cell; k < cell + kCellCols; k += 2) {
      even = std::fma(w[k], tensor::bf16_to_f32(x[k]), even);
      odd = std::fma(w[k + 1], tensor::bf16_to_f32(x[k + 1]), odd);
    }
    acc = acc + (even + odd);
  }
  return acc;
}

void matmul_bf16(const PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, float* y, int ld_y,
                 std::byte* scratch) {
  auto* weights = reinterpret_cast<float*>(scratch);
  for (int n = panels.begin * kPanelRows; n < std::min(panels.end * kPanelRows, w.n_rows); ++n) {
    tensor::dequantize_panel_row(w, n, weights);
    for (int k = 0; k < w.n_cols; ++k) weights[k] = tensor::bf16_to_f32(round_bf16(weights[k]));
    for (int row = rows.begin; row < rows.end; ++row) {
      y[static_cast<size_t>(row) * static_cast<size_t>(ld_y) + static_cast<size_t>(n)] =
          dot_bf16(weights, x.bf16 + static_cast<size_t>(row) * static_cast<size_t>(w.n_cols), w.n_cols);
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels::ref

namespace pagoda::kernels {

void fill_matmul_ref(KernelTable& table) {
  table.quantize_rows = ref::quantize_rows;
  table.bf16_rows = ref::bf16_rows;
  table.matmul[static_cast<size_t>(Arithmetic::kInt8)] = ref::matmul_in_int8;
  table.matmul[static_cast<size_t>(Arithmetic::kF32)] = ref::matmul_f32;
  table.matmul[static_cast<size_t>(Arithmetic::kBf16)] = ref::matmul_bf16;
  // It multiplies rows as they were quantized.
  table.pack_rows = [](tensor::DType, const QuantRows&, Range, std::byte*) { return PackedRows(); };
  table.gather_row = tensor::dequantize_panel_row;
}

}  // namespace pagoda::kernels
