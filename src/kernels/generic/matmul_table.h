// The matmul entries of a KernelTable for one instruction set. Include inside a region, last.

template <Arithmetic kArithmetic>
struct MatmulCall {
  const tensor::PanelMatrix& w;
  Range panels;
  const MatmulInput& x;
  Range rows;
  MatmulOutput out;
  std::byte* scratch;

  template <tensor::DType kType>
  void run() const {
    if constexpr (kArithmetic == Arithmetic::kBf16) {
      matmul_float<kType, Bf16Kernel>(w, panels, x, rows, out, scratch);
    } else if constexpr (kArithmetic == Arithmetic::kF32 || tensor::is_float(kType)) {
      matmul_float<kType, F32Kernel>(w, panels, x, rows, out, scratch);
    } else {
      matmul_int8<kType>(w, panels, x, rows, out, scratch);
    }
  }
};

template <Arithmetic kArithmetic>
void matmul(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, float* y, int ld_y,
            std::byte* scratch) {
  with_type(w.dtype, MatmulCall<kArithmetic>{w, panels, x, rows, {y, ld_y, w.n_rows}, scratch});
}

PackedRows pack_rows(tensor::DType type, const QuantRows& x, Range rows, std::byte* out) {
  with_type(type, PackCall{x, rows, out});
  return {out, rows, type};
}

// Dequantizes whole cells of the panel and keeps one lane.
struct GatherCall {
  const tensor::PanelMatrix& w;
  int row;
  float* out;

  template <tensor::DType kType>
  void run() const {
    alignas(64) float cell[kF32CellFloats];
    const std::byte* panel = w.panel(row / tensor::kPanelRows);
    const auto lane = static_cast<size_t>(row % tensor::kPanelRows);
    for (size_t i = 0; i < static_cast<size_t>(w.n_cols) / tensor::kCellCols; ++i) {
      dequantize_cell<kType>(panel, w.n_cols, i, 0, F32Columns{cell});
      for (size_t k = 0; k < static_cast<size_t>(tensor::kCellCols); ++k) {
        out[i * tensor::kCellCols + k] = cell[k * tensor::kPanelRows + lane];
      }
    }
  }
};

void gather_row(const tensor::PanelMatrix& w, int row, float* out) { with_type(w.dtype, GatherCall{w, row, out}); }

void fill_matmul(KernelTable& table) {
  table.quantize_rows = quantize_rows;
  table.bf16_rows = bf16_rows;
  table.matmul[static_cast<int>(Arithmetic::kInt8)] = matmul<Arithmetic::kInt8>;
  table.matmul[static_cast<int>(Arithmetic::kF32)] = matmul<Arithmetic::kF32>;
  table.matmul[static_cast<int>(Arithmetic::kBf16)] = matmul<Arithmetic::kBf16>;
  table.pack_rows = pack_rows;
  table.gather_row = gather_row;
}
