// matmul in f32 arithmetic, once for every instruction set and type. Include inside a region, after matmul_int8.h.
// Per output lane, K ascending: acc = fma(w, x, acc), where w is what dequantize_row gives: (d * sc) * code [+ c * m].
// Loops: a tile of rows, then kMatmulPanels panels, then chunks of cells (dequantized to scratch), then kMatmulRows rows, then
// columns; sums wait in y between chunks.

inline constexpr size_t kF32CellFloats = static_cast<size_t>(tensor::kCellCols) * tensor::kPanelRows;
inline constexpr size_t kF32ChunkCells = 4;
inline constexpr size_t kF32ChunkFloats = kF32ChunkCells * kF32CellFloats;

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

// Bytes of a cell's codes, or of a cell of floats.
template <tensor::DType kType>
inline constexpr size_t kCellBytes = kType == tensor::DType::kF32 ? 4 * kF32CellFloats
                                     : tensor::is_float(kType)    ? 2 * kF32CellFloats
                                                                  : tensor::panel_format(kType).code_bytes();

// Cells [begin, end) of a panel; what lies `ahead` bytes further is asked for.
template <tensor::DType kType>
void dequantize_cells(const std::byte* panel, int n_cols, Range cells, size_t ahead, float* out) {
  for (int cell = cells.begin; cell < cells.end; ++cell, out += kF32CellFloats) {
    prefetch_bytes<kCellBytes<kType>>(panel + static_cast<size_t>(cell) * kCellBytes<kType> + ahead);
    dequantize_cell<kType>(panel, n_cols, static_cast<size_t>(cell), out);
  }
}

// One tile of rows against kPanels panels, the columns of `cells`.
struct F32Job {
  const MatmulInput* x;
  Range rows;
  MatmulOutput out;
  int panel;
  int panels_end;  // of the call
  Range cells;
  const float* weights;  // [kPanels][kF32ChunkFloats]
};

template <int kRows, int kPanels>
void f32_rows(const F32Job& job, int row) {
  const auto ld = static_cast<size_t>(job.x->ld);
  const float* x = job.x->x + static_cast<size_t>(row) * ld + static_cast<size_t>(job.cells.begin) * tensor::kCellCols;
  F32 acc[kPanels][kRows];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      acc[p][r] = job.cells.begin == 0 ? zero() : job.out.load_panel(row + r, job.panel + p);
    }
  }
  const auto n_cols = static_cast<size_t>(job.cells.size()) * tensor::kCellCols;
  for (size_t k = 0; k < n_cols; ++k) {
    F32 w[kPanels];
#pragma GCC unroll 8
    for (size_t p = 0; p < kPanels; ++p) w[p] = load(job.weights + p * kF32ChunkFloats + k * tensor::kPanelRows);
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      const F32 a = splat(x[r * ld + k]);
#pragma GCC unroll 8
      for (size_t p = 0; p < kPanels; ++p) acc[p][r] = fma(w[p], a, acc[p][r]);
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) job.out.store_panel(row + r, job.panel + p, acc[p][r]);
  }
}

template <tensor::DType kType, int kPanels>
void f32_panels(const tensor::PanelMatrix& w, F32Job job, float* weights) {
  const int n_cells = w.n_cols / tensor::kCellCols;
  constexpr int kChunk = kF32ChunkCells;
  const size_t ahead = job.panel + kPanels < job.panels_end ? kPanels * w.panel_bytes : 0;
  for (int begin = 0; begin < n_cells; begin += kChunk) {
    job.cells = {begin, begin + kChunk < n_cells ? begin + kChunk : n_cells};
    for (int p = 0; p < kPanels; ++p) {
      dequantize_cells<kType>(w.panel(job.panel + p), w.n_cols, job.cells, ahead,
                              weights + static_cast<size_t>(p) * kF32ChunkFloats);
    }
    int row = job.rows.begin;
    for (; row + kMatmulRows <= job.rows.end; row += kMatmulRows) f32_rows<kMatmulRows, kPanels>(job, row);
    for (; row + 2 <= job.rows.end; row += 2) f32_rows<2, kPanels>(job, row);
    if (row < job.rows.end) f32_rows<1, kPanels>(job, row);
  }
}

template <tensor::DType kType>
void matmul_f32(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, const MatmulOutput& out,
                std::byte* scratch) {
  auto* weights = reinterpret_cast<float*>(scratch);
  for (int begin = rows.begin; begin < rows.end; begin += kMatmulTileRows) {
    const Range tile{begin, begin + kMatmulTileRows < rows.end ? begin + kMatmulTileRows : rows.end};
    F32Job job{&x, tile, out, panels.begin, panels.end, {}, weights};
    for (; job.panel + kMatmulPanels <= panels.end; job.panel += kMatmulPanels) {
      f32_panels<kType, kMatmulPanels>(w, job, weights);
    }
    if constexpr (kMatmulPanels > 1) {
      for (; job.panel < panels.end; ++job.panel) f32_panels<kType, 1>(w, job, weights);
    }
  }
}
