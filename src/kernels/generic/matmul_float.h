// matmul over dequantized weights, once for every instruction set and type. Include inside a region, after dequantize.h and
// matmul_output.h.
// A Kernel says what a weight becomes in scratch (Columns) and how rows are multiplied (rows). This one is f32 arithmetic: per output
// lane, K ascending, acc = fma(w, x, acc).
// Loops: a tile of rows, then kMatmulPanels panels, then chunks of cells (dequantized to scratch), then kMatmulRows rows, then
// columns; sums wait in y between chunks.

inline constexpr size_t kF32ChunkCells = 4;
inline constexpr size_t kF32ChunkCols = kF32ChunkCells * tensor::kCellCols;
inline constexpr size_t kF32ChunkFloats = kF32ChunkCells * kF32CellFloats;

// One tile of rows against kPanels panels, the columns of `cells`.
struct FloatJob {
  const MatmulInput* x;
  int n_cols;
  Range rows;
  MatmulOutput out;
  int panel;
  int panels_end;  // of the call
  Range cells;
  const float* weights;  // [kPanels][kF32ChunkFloats]

  // What a row's sums with panel p of the job are before this chunk.
  PAGODA_SIMD F32 load_sum(int row, int p) const { return cells.begin == 0 ? zero() : out.load_panel(row, panel + p); }
};

struct F32Kernel {
  using Columns = F32Columns;

  template <int kRows, int kPanels>
  static void rows(const FloatJob& job, int row) {
    const auto ld = static_cast<size_t>(job.x->ld);
    const float* x =
        job.x->x + static_cast<size_t>(row) * ld + static_cast<size_t>(job.cells.begin) * tensor::kCellCols;
    F32 acc[kPanels][kRows];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[p][r] = job.load_sum(row + r, p);
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
};

template <tensor::DType kType, class Kernel, int kPanels>
void float_panels(const tensor::PanelMatrix& w, FloatJob job, float* weights) {
  const int n_cells = w.n_cols / tensor::kCellCols;
  constexpr int kChunk = kF32ChunkCells;
  const size_t ahead = job.panel + kPanels < job.panels_end ? kPanels * w.panel_bytes : 0;
  for (int begin = 0; begin < n_cells; begin += kChunk) {
    job.cells = {begin, begin + kChunk < n_cells ? begin + kChunk : n_cells};
    for (int p = 0; p < kPanels; ++p) {
      dequantize_cells<kType, typename Kernel::Columns>(w.panel(job.panel + p), w.n_cols, job.cells, ahead,
                                                        weights + static_cast<size_t>(p) * kF32ChunkFloats);
    }
    int row = job.rows.begin;
    for (; row + kMatmulRows <= job.rows.end; row += kMatmulRows) Kernel::template rows<kMatmulRows, kPanels>(job, row);
    for (; row + 2 <= job.rows.end; row += 2) Kernel::template rows<2, kPanels>(job, row);
    if (row < job.rows.end) Kernel::template rows<1, kPanels>(job, row);
  }
}

template <tensor::DType kType, class Kernel>
void matmul_float(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, const MatmulOutput& out,
                  std::byte* scratch) {
  auto* weights = reinterpret_cast<float*>(scratch);
  for (int begin = rows.begin; begin < rows.end; begin += kMatmulTileRows) {
    const Range tile{begin, begin + kMatmulTileRows < rows.end ? begin + kMatmulTileRows : rows.end};
    FloatJob job{&x, w.n_cols, tile, out, panels.begin, panels.end, {}, weights};
    for (; job.panel + kMatmulPanels <= panels.end; job.panel += kMatmulPanels) {
      float_panels<kType, Kernel, kMatmulPanels>(w, job, weights);
    }
    if constexpr (kMatmulPanels > 1) {
      for (; job.panel < panels.end; ++job.panel) float_panels<kType, Kernel, 1>(w, job, weights);
    }
  }
}
