// The matmul entries of a KernelTable for one instruction set. Include inside a region, last.

// Calls f.template run<kType>() for the weight's type.
template <typename F>
PAGODA_SIMD void with_type(tensor::DType type, const F& f) {
  switch (type) {
    case tensor::DType::kF32:
      return f.template run<tensor::DType::kF32>();
    case tensor::DType::kF16:
      return f.template run<tensor::DType::kF16>();
    case tensor::DType::kBF16:
      return f.template run<tensor::DType::kBF16>();
    case tensor::DType::kQ4_0:
      return f.template run<tensor::DType::kQ4_0>();
    case tensor::DType::kQ4_1:
      return f.template run<tensor::DType::kQ4_1>();
    case tensor::DType::kQ5_0:
      return f.template run<tensor::DType::kQ5_0>();
    case tensor::DType::kQ5_1:
      return f.template run<tensor::DType::kQ5_1>();
    case tensor::DType::kQ8_0:
      return f.template run<tensor::DType::kQ8_0>();
    case tensor::DType::kQ2_K:
      return f.template run<tensor::DType::kQ2_K>();
    case tensor::DType::kQ3_K:
      return f.template run<tensor::DType::kQ3_K>();
    case tensor::DType::kQ4_K:
      return f.template run<tensor::DType::kQ4_K>();
    case tensor::DType::kQ5_K:
      return f.template run<tensor::DType::kQ5_K>();
    case tensor::DType::kQ6_K:
      return f.template run<tensor::DType::kQ6_K>();
    case tensor::DType::kIQ4_NL:
      return f.template run<tensor::DType::kIQ4_NL>();
    case tensor::DType::kIQ4_XS:
      return f.template run<tensor::DType::kIQ4_XS>();
  }
}

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
    if constexpr (kArithmetic == Arithmetic::kF32 || tensor::is_float(kType)) {
      matmul_f32<kType>(w, panels, x, rows, out, scratch);
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
      dequantize_cell<kType>(panel, w.n_cols, i, cell);
      for (size_t k = 0; k < static_cast<size_t>(tensor::kCellCols); ++k) {
        out[i * tensor::kCellCols + k] = cell[k * tensor::kPanelRows + lane];
      }
    }
  }
};

void gather_row(const tensor::PanelMatrix& w, int row, float* out) { with_type(w.dtype, GatherCall{w, row, out}); }

void fill_matmul(KernelTable& table) {
  table.quantize_rows = quantize_rows;
  table.matmul[static_cast<int>(Arithmetic::kInt8)] = matmul<Arithmetic::kInt8>;
  table.matmul[static_cast<int>(Arithmetic::kF32)] = matmul<Arithmetic::kF32>;
  table.gather_row = gather_row;
}
