// matmul in bf16 arithmetic where there are no tiles, and bf16_rows. Include inside a region, after simd_bf16.h and matmul_float.h.
// Per output lane and cell of 32 columns: two chains of fma from +0 over the pairs ascending, even and odd columns apart, of weights
// and activations rounded to bf16; then acc = acc + (even + odd): the order of TDPBF16PS. VDPBF16PS adds in another order.

// Bf16 values as f32, [32 columns][16 outputs].
struct Bf16Columns {
  static constexpr size_t kStep = kF32CellFloats;
  static constexpr size_t kTogether = 1;
  float* out;

  PAGODA_SIMD void put(size_t column, F32 w) const { F32Columns{out}.put(column, round_bf16(w)); }
  PAGODA_SIMD void put(size_t pair, F32 even, F32 odd) const {
    put(2 * pair, even);
    put(2 * pair + 1, odd);
  }
};

struct Bf16Kernel {
  using Columns = Bf16Columns;

  // The chain over every second column: w [32 columns][16 outputs] of kPanels panels and x start at its first.
  template <int kRows, int kPanels>
  PAGODA_SIMD static void chain(const float* w, const float* x, F32 (*sum)[kRows]) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[p][r] = zero();
    }
    for (size_t k = 0; k < static_cast<size_t>(tensor::kCellCols); k += 2) {
      F32 a[kPanels];
#pragma GCC unroll 8
      for (size_t p = 0; p < kPanels; ++p) a[p] = load(w + p * kF32ChunkFloats + k * tensor::kPanelRows);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const F32 b = splat(x[r * kF32ChunkCols + k]);
#pragma GCC unroll 8
        for (size_t p = 0; p < kPanels; ++p) sum[p][r] = fma(a[p], b, sum[p][r]);
      }
    }
  }

  // The job's columns of kRows rows as f32, [kRows][kF32ChunkCols].
  template <int kRows>
  PAGODA_SIMD static void widen(const FloatJob& job, int row, float* out) {
    const auto ld = static_cast<size_t>(job.n_cols);
    const uint16_t* x =
        job.x->bf16 + static_cast<size_t>(row) * ld + static_cast<size_t>(job.cells.begin) * tensor::kCellCols;
    const auto n_cols = static_cast<size_t>(job.cells.size()) * tensor::kCellCols;
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t k = 0; k < n_cols; k += kLanes) store(out + r * kF32ChunkCols + k, widen_bf16(x + r * ld + k));
    }
  }

  template <int kRows, int kPanels>
  static void rows(const FloatJob& job, int row) {
    alignas(64) float x[kRows * kF32ChunkCols];
    widen<kRows>(job, row, x);
    F32 acc[kPanels][kRows];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) acc[p][r] = job.load_sum(row + r, p);
    }
    for (size_t cell = 0; cell < static_cast<size_t>(job.cells.size()); ++cell) {
      const float* w = job.weights + cell * kF32CellFloats;
      F32 even[kPanels][kRows];
      F32 odd[kPanels][kRows];
      chain<kRows, kPanels>(w, x + cell * tensor::kCellCols, even);
      chain<kRows, kPanels>(w + tensor::kPanelRows, x + cell * tensor::kCellCols + 1, odd);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[p][r] = add(acc[p][r], add(even[p][r], odd[p][r]));
      }
    }
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) job.out.store_panel(row + r, job.panel + p, acc[p][r]);
    }
  }
};

void bf16_rows(const float* x, int ld, Range rows, Range cols, uint16_t* out, int ld_out) {
  for (int row = rows.begin; row < rows.end; ++row) {
    const float* from = x + static_cast<size_t>(row) * static_cast<size_t>(ld);
    uint16_t* to = out + static_cast<size_t>(row) * static_cast<size_t>(ld_out);
    for (int col = cols.begin; col < cols.end; col += kLanes) store_bf16(to + col, round_bf16(load(from + col)));
  }
}
