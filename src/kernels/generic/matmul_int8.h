// matmul in int8 arithmetic, once for every instruction set and quantized type. Include inside a region, after panel_codes.h.
// Per output lane and cell of 32 columns, K ascending (design: numerics):
//   acc = fma(f32(sum of sc * dot), d_w * d_a, acc);   with a minimum then acc = fma(f32(sum of m * sum of q_a), c * d_a, acc)
// f32(integer) is computed as fma(f32(sc), f32(dot), f32(...)): every value stays below 2^24, so that is the same number; starting
// from +0 keeps a zero positive, as the integer's is.
// Loops: a tile of rows, then panels, then up to kMatmulRows rows at a time, then cells; a panel's codes come from memory once per tile.

// Rows that share one pass over the weights; their sums are in scratch.
inline constexpr int kInt8TileRows = 64;
// From this many rows on, codes are expanded to scratch once per panel.
inline constexpr int kExpandRows = 2 * kMatmulRows;

// What the inner loop needs of the activations besides q and d: per dot a correction -offset * sum as int32 (the dot starts from
// it), or per minimum a sum as f32. One value per half cell where the sub-scales are halves, else one per cell.
template <tensor::DType kType>
struct Sums {
  static constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  static constexpr bool kHalves =
      kFormat.scales == tensor::ScaleKind::kHalves || kFormat.scales == tensor::ScaleKind::kHalvesMin4;
  static constexpr bool kUsed = kFormat.minimum || kDotOffset<kType> != 0;
  static_assert(!kFormat.minimum || kFormat.offset == 0);
  static constexpr int kPerCell = kHalves ? 2 : 1;

  static void fill(const QuantRows& x, Range rows, int32_t* out) {
    const int n_cells = x.n_cols / tensor::kCellCols;
    for (int row = rows.begin; row < rows.end; ++row) {
      const int16_t* sums = x.sums16 + static_cast<size_t>(row) * static_cast<size_t>(2 * n_cells);
      for (int i = 0; i < n_cells * kPerCell; ++i) {
        const int32_t sum = kHalves ? sums[i] : sums[2 * i] + sums[2 * i + 1];
        *out++ = kFormat.minimum ? __builtin_bit_cast(int32_t, static_cast<float>(sum)) : -kDotOffset<kType> * sum;
      }
    }
  }
};

// kRows rows of activations against one panel.
template <tensor::DType kType, CodeSource kSource, int kRows>
struct Int8Tile {
  static constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  using RowSums = Sums<kType>;
  using CellDot = Dot<kDotBits<kType>>;

  const int8_t* q;      // [kRows, n_cells * 32]
  const float* d;       // [kRows, n_cells]
  const int32_t* sums;  // [kRows, n_cells * kPerCell]
  size_t n_cells;
  F32 acc[kRows];

  template <int kHalf>
  PAGODA_SIMD I32 dot_start(int row, size_t cell) const {
    if constexpr (kFormat.minimum || !RowSums::kUsed) return splat_i32(0);
    return splat_i32(sums[(static_cast<size_t>(row) * n_cells + cell) * RowSums::kPerCell + kHalf]);
  }
  template <int kQuad>
  PAGODA_SIMD void step_quad(const std::byte* codes, size_t cell, CellDot* dots) const {
    const I32 w = quad_codes<kType, kSource, kQuad>(codes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      dots[r].template step<kQuad>(w, q + (static_cast<size_t>(r) * n_cells + cell) * tensor::kCellCols + 4 * kQuad);
    }
  }
  // The dots of the columns of quads [kQuad, kEnd).
  template <int kQuad, int kEnd>
  PAGODA_SIMD void step_quads(const std::byte* codes, size_t cell, CellDot* dots) const {
    step_quad<kQuad>(codes, cell, dots);
    if constexpr (kQuad + 1 < kEnd) step_quads<kQuad + 1, kEnd>(codes, cell, dots);
  }

  // f32(sum of sc * dot) of each row.
  PAGODA_SIMD void scaled_dots(const std::byte* codes, size_t cell, const CellScales& scales, F32* out) const {
    CellDot dots[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) dots[r] = CellDot::from(dot_start<0>(r, cell));
    if constexpr (!RowSums::kHalves) {
      step_quads<0, 8>(codes, cell, dots);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        out[r] = to_f32(dots[r].total());
        if constexpr (kFormat.scales != tensor::ScaleKind::kNone) out[r] = fma(out[r], scales.sc[0], zero());
      }
    } else {
      step_quads<0, 4>(codes, cell, dots);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        out[r] = fma(to_f32(dots[r].total()), scales.sc[0], zero());
        dots[r] = CellDot::from(dot_start<1>(r, cell));
      }
      step_quads<4, 8>(codes, cell, dots);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) out[r] = fma(to_f32(dots[r].total()), scales.sc[1], out[r]);
    }
  }

  // f32(sum of m * sum of q_a) of one row.
  PAGODA_SIMD F32 scaled_sum(int row, size_t cell, const CellScales& scales) const {
    const auto* sum =
        reinterpret_cast<const float*>(sums) + (static_cast<size_t>(row) * n_cells + cell) * RowSums::kPerCell;
    if constexpr (kFormat.scales == tensor::ScaleKind::kNone) return splat(*sum);
    const F32 first = fma(splat(sum[0]), scales.m[0], zero());
    if constexpr (!RowSums::kHalves) return first;
    return fma(splat(sum[RowSums::kPerCell - 1]), scales.m[1], first);
  }

  PAGODA_SIMD void add_cell(const std::byte* codes, const std::byte* scale_bytes, F32 d_w, F32 c, size_t cell) {
    const CellScales scales = cell_scales<kType>(scale_bytes);
    F32 scaled[kRows];
    scaled_dots(codes, cell, scales, scaled);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 d_a = splat(d[static_cast<size_t>(r) * n_cells + cell]);
      acc[r] = fma(scaled[r], mul(d_w, d_a), acc[r]);
      if constexpr (kFormat.minimum) acc[r] = fma(scaled_sum(r, cell, scales), mul(c, d_a), acc[r]);
    }
  }

  // `codes`: of the panel's first cell, in the panel or in scratch.
  PAGODA_SIMD void run(const std::byte* panel, const std::byte* codes) {
    constexpr size_t kCodeBytes = kSource == CodeSource::kPanel ? kFormat.code_bytes() : kExpandedCellBytes;
    const tensor::PanelParts parts = tensor::panel_parts(kFormat, static_cast<int>(n_cells) * tensor::kCellCols);
    const std::byte* scales = panel + parts.scales;
    const std::byte* block = panel + parts.blocks;
    for (F32& a : acc) a = zero();
    for (size_t first = 0; first < n_cells; first += kFormat.block_cells) {
      const F32 d_w = widen_f16(block);
      const F32 c = kFormat.minimum ? widen_f16(block + 2 * tensor::kPanelRows) : zero();
      for (size_t cell = first; cell < first + kFormat.block_cells; ++cell) {
        add_cell(codes, scales, d_w, c, cell);
        codes += kCodeBytes;
        scales += kFormat.scale_bytes();
      }
      block += kFormat.block_bytes();
    }
  }
};

struct MatmulOutput {
  float* y;
  int ld;
  int n_rows;  // of the weight: outputs beyond are not written
};

template <int kRows>
PAGODA_SIMD void store_outputs(const MatmulOutput& out, int row, int panel, const F32* acc) {
  const int first = panel * tensor::kPanelRows;
  const int n = out.n_rows - first;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float* y = out.y + static_cast<size_t>(row + r) * static_cast<size_t>(out.ld) + first;
    if (n >= tensor::kPanelRows) {
      store(y, acc[r]);
    } else {
      store_first(y, acc[r], n);
    }
  }
}

// What one tile of rows shares.
struct Int8Job {
  const tensor::PanelMatrix* w;
  QuantRows x;
  Range rows;
  const int32_t* sums;  // of rows
  MatmulOutput out;
};

template <tensor::DType kType, CodeSource kSource, int kRows>
void int8_rows(const Int8Job& job, int row, int panel, const std::byte* codes) {
  const auto n_cells = static_cast<size_t>(job.w->n_cols) / tensor::kCellCols;
  const size_t at = static_cast<size_t>(row) * n_cells;
  const size_t in_tile = static_cast<size_t>(row - job.rows.begin) * n_cells * Sums<kType>::kPerCell;
  Int8Tile<kType, kSource, kRows> tile{job.x.q + at * tensor::kCellCols, job.x.d + at, job.sums + in_tile, n_cells, {}};
  tile.run(job.w->panel(panel), codes);
  store_outputs<kRows>(job.out, row, panel, tile.acc);
}

// All rows of a tile against one panel: kMatmulRows at a time, then 4, 2, 1.
template <tensor::DType kType, CodeSource kSource>
void int8_panel(const Int8Job& job, int panel, const std::byte* codes) {
  int row = job.rows.begin;
  for (; row + kMatmulRows <= job.rows.end; row += kMatmulRows)
    int8_rows<kType, kSource, kMatmulRows>(job, row, panel, codes);
  if constexpr (kMatmulRows > 4) {
    if (row + 4 <= job.rows.end) int8_rows<kType, kSource, 4>(job, row, panel, codes), row += 4;
  }
  if (row + 2 <= job.rows.end) int8_rows<kType, kSource, 2>(job, row, panel, codes), row += 2;
  if (row < job.rows.end) int8_rows<kType, kSource, 1>(job, row, panel, codes);
}

template <tensor::DType kType>
void matmul_int8(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, const MatmulOutput& out,
                 std::byte* scratch) {
  constexpr bool kExpands = tensor::panel_format(kType).low_bits != 8;
  const int n_cells = w.n_cols / tensor::kCellCols;
  auto* sums = reinterpret_cast<int32_t*>(scratch + static_cast<size_t>(n_cells) * kExpandedCellBytes);
  for (int begin = rows.begin; begin < rows.end; begin += kInt8TileRows) {
    const Range tile{begin, begin + kInt8TileRows < rows.end ? begin + kInt8TileRows : rows.end};
    const Int8Job job{&w, x.quant, tile, sums, out};
    if constexpr (Sums<kType>::kUsed) Sums<kType>::fill(x.quant, tile, sums);
    for (int panel = panels.begin; panel < panels.end; ++panel) {
      if (kExpands && tile.size() >= kExpandRows) {
        expand_panel<kType>(w.panel(panel), n_cells, scratch);
        int8_panel<kType, CodeSource::kScratch>(job, panel, scratch);
      } else {
        int8_panel<kType, CodeSource::kPanel>(job, panel, w.panel(panel));
      }
    }
  }
}
