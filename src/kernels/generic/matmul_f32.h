// matmul in f32 arithmetic, once for every instruction set and type. Include inside a region, after matmul_int8.h.
// Per output lane, K ascending: acc = fma(w, x, acc), where w is what dequantize_row gives: (d * sc) * code [+ c * m].

// From this many rows on, a panel is dequantized to scratch once.
inline constexpr int kDequantizeRows = 2 * kMatmulRows;

inline constexpr size_t kF32CellFloats = static_cast<size_t>(tensor::kCellCols) * tensor::kPanelRows;

// Column kColumn of the quad, as integers that mean what the type says.
template <tensor::DType kType, int kColumn>
PAGODA_SIMD I32 column_codes(I32 quad) {
  if constexpr (kDotBits<kType> == 8 && kSignedBytes) {
    return shift_right_signed<24>(shift_left<24 - 8 * kColumn>(quad));
  }
  const I32 u = bit_and(shift<-8 * kColumn>(quad), splat_i32(255));
  return sub(u, splat_i32(kDotOffset<kType>));
}

struct AffineScale {
  F32 scale;  // d * sc
  F32 minimum;
};

template <tensor::DType kType, int kColumn = 0>
PAGODA_SIMD void dequantize_quad(I32 quad, const AffineScale& s, float* out) {
  F32 w = mul(s.scale, to_f32(column_codes<kType, kColumn>(quad)));
  if constexpr (tensor::panel_format(kType).minimum) w = add(w, s.minimum);
  store(out + kColumn * tensor::kPanelRows, w);
  if constexpr (kColumn < 3) dequantize_quad<kType, kColumn + 1>(quad, s, out);
}

template <tensor::DType kType, int kQuad = 0>
PAGODA_SIMD void dequantize_quads(const std::byte* codes, const AffineScale scales[2], float* out) {
  dequantize_quad<kType>(packed_quad<kType, kQuad>(codes), scales[kQuad / 4], out + kQuad * tensor::kQuadBytes);
  if constexpr (kQuad < 7) dequantize_quads<kType, kQuad + 1>(codes, scales, out);
}

// One cell [32 columns][16 rows] of a panel.
template <tensor::DType kType>
PAGODA_SIMD void dequantize_cell(const std::byte* panel, int n_cols, size_t cell, float* out) {
  if constexpr (tensor::is_float(kType)) {
    const std::byte* p = panel + cell * kF32CellFloats * (kType == tensor::DType::kF32 ? 4 : 2);
    for (size_t i = 0; i < kF32CellFloats; i += kLanes) {
      if constexpr (kType == tensor::DType::kF32) store(out + i, load(reinterpret_cast<const float*>(p) + i));
      if constexpr (kType == tensor::DType::kF16) store(out + i, widen_f16(p + 2 * i));
      if constexpr (kType == tensor::DType::kBF16) store(out + i, widen_bf16(p + 2 * i));
    }
  } else {
    constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
    constexpr bool kScaled = kFormat.scales != tensor::ScaleKind::kNone;
    const tensor::PanelParts parts = tensor::panel_parts(kFormat, n_cols);
    const CellScales s = cell_scales<kType>(panel + parts.scales + cell * kFormat.scale_bytes());
    const std::byte* block = panel + parts.blocks + cell / kFormat.block_cells * kFormat.block_bytes();
    const F32 d = widen_f16(block);
    AffineScale scales[2];
    for (int half = 0; half < 2; ++half) {
      scales[half].scale = kScaled ? mul(d, s.sc[half]) : d;
      scales[half].minimum = zero();
      if constexpr (kFormat.minimum) {
        const F32 c = widen_f16(block + 2 * tensor::kPanelRows);
        scales[half].minimum = kScaled ? mul(c, s.m[half]) : c;
      }
    }
    dequantize_quads<kType>(panel + cell * kFormat.code_bytes(), scales, out);
  }
}

// kRows rows of activations against one panel; `weights` is the dequantized panel, or null: then a cell at a time is.
template <tensor::DType kType, int kRows>
void f32_rows(const tensor::PanelMatrix& w, const MatmulInput& x, int row, int panel, const float* weights,
              const MatmulOutput& out) {
  alignas(64) float cell_weights[kF32CellFloats];
  const auto n_cells = static_cast<size_t>(w.n_cols) / tensor::kCellCols;
  const auto ld = static_cast<size_t>(x.ld);
  const float* x_row = x.x + static_cast<size_t>(row) * ld;
  F32 acc[kRows];
  for (F32& a : acc) a = zero();
  for (size_t cell = 0; cell < n_cells; ++cell) {
    const float* from = weights == nullptr ? cell_weights : weights + cell * kF32CellFloats;
    if (weights == nullptr) dequantize_cell<kType>(w.panel(panel), w.n_cols, cell, cell_weights);
    for (size_t k = 0; k < static_cast<size_t>(tensor::kCellCols); ++k) {
      const F32 weight = load(from + k * tensor::kPanelRows);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) acc[r] = fma(weight, splat(x_row[r * ld + k]), acc[r]);
    }
    x_row += tensor::kCellCols;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) out.store_panel(row + r, panel, acc[r]);
}

template <tensor::DType kType>
void matmul_f32(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, const MatmulOutput& out,
                std::byte* scratch) {
  const auto n_cells = static_cast<size_t>(w.n_cols) / tensor::kCellCols;
  for (int panel = panels.begin; panel < panels.end; ++panel) {
    const float* weights = nullptr;
    if constexpr (kType == tensor::DType::kF32) {
      weights = reinterpret_cast<const float*>(w.panel(panel));
    } else if (rows.size() >= kDequantizeRows) {
      auto* panel_weights = reinterpret_cast<float*>(scratch);
      for (size_t i = 0; i < n_cells; ++i) {
        dequantize_cell<kType>(w.panel(panel), w.n_cols, i, panel_weights + i * kF32CellFloats);
      }
      weights = panel_weights;
    }
    int row = rows.begin;
    for (; row + kMatmulRows <= rows.end; row += kMatmulRows)
      f32_rows<kType, kMatmulRows>(w, x, row, panel, weights, out);
    if constexpr (kMatmulRows > 4) {
      if (row + 4 <= rows.end) f32_rows<kType, 4>(w, x, row, panel, weights, out), row += 4;
    }
    if (row + 2 <= rows.end) f32_rows<kType, 2>(w, x, row, panel, weights, out), row += 2;
    if (row < rows.end) f32_rows<kType, 1>(w, x, row, panel, weights, out);
  }
}
