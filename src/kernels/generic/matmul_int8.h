// matmul in int8 arithmetic, once for every instruction set and quantized type. Include inside a region, after panel_codes.h and matmul_output.h.
// Per output lane and cell of 32 columns, K ascending (design: numerics):
//   acc = fma(f32(sum of sc * dot), d_w * d_a, acc);   with a minimum then acc = fma(f32(sum of m * sum of q_a), c * d_a, acc)
// f32(integer) is computed as fma(f32(sc), f32(dot), f32(...)): every value stays below 2^24, so that is the same number; starting
// from +0 keeps a zero positive, as the integer's is.
// Loops: a tile of rows, then kMatmulPanels panels, then (for many rows) chunks of cells, then kMatmulRows rows, then cells. A
// panel comes from memory once per tile; many rows find a chunk's codes expanded in L1, and carry their sums in y meanwhile.

// From this many rows on, the cells are taken in chunks.
inline constexpr int kChunkRows = kMatmulRows + 1;
inline constexpr size_t kChunkCells = 16;  // a multiple of every type's block
inline constexpr size_t kChunkBytes = kChunkCells * kExpandedCellBytes;
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

// Where the codes, scales and blocks of a panel's next cell are.
struct PanelCursor {
  const std::byte* codes;   // in the panel or in scratch
  const std::byte* memory;  // in the panel
  const std::byte* scales;
  const std::byte* block;
};

// kRows rows of activations against kPanels panels.
template <tensor::DType kType, CodeSource kSource, int kRows, int kPanels>
struct Int8Tile {
  static constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  static constexpr size_t kCodeBytes = kSource == CodeSource::kScratch ? kExpandedCellBytes : kFormat.code_bytes();
  using RowSums = Sums<kType>;
  using CellDot = Dot<kDotBits<kType>>;

  const int8_t* q;      // [kRows, n_cells * 32]
  const float* d;       // [kRows, n_cells]
  const int32_t* sums;  // [kRows, n_cells * kPerCell]
  size_t n_cells;
  size_t ahead;  // bytes to the panels that come next, which are asked for; 0: nothing is
  PanelCursor at[kPanels];
  F32 acc[kPanels][kRows];

  template <int kHalf>
  PAGODA_SIMD I32 dot_start(int row, size_t cell) const {
    if constexpr (kFormat.minimum || !RowSums::kUsed) return splat_i32(0);
    return splat_i32(sums[(static_cast<size_t>(row) * n_cells + cell) * RowSums::kPerCell + kHalf]);
  }
  template <int kQuad>
  PAGODA_SIMD void step_quad(size_t cell, CellDot (*dots)[kRows]) const {
    I32 w[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) w[p] = quad_codes<kType, kSource, kQuad>(at[p].codes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int8_t* a = q + (static_cast<size_t>(r) * n_cells + cell) * tensor::kCellCols + 4 * kQuad;
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) dots[p][r].template step<kQuad>(w[p], a);
    }
  }
  // The dots of the columns of quads [kQuad, kEnd).
  template <int kQuad, int kEnd>
  PAGODA_SIMD void step_quads(size_t cell, CellDot (*dots)[kRows]) const {
    step_quad<kQuad>(cell, dots);
    if constexpr (kQuad + 1 < kEnd) step_quads<kQuad + 1, kEnd>(cell, dots);
  }

  // f32(sum of sc * dot) of each panel and row.
  PAGODA_SIMD void scaled_dots(size_t cell, const CellScales* scales, F32 (*out)[kRows]) const {
    CellDot dots[kPanels][kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) dots[p][r] = CellDot::from(dot_start<0>(r, cell));
    }
    step_quads<0, RowSums::kHalves ? 4 : 8>(cell, dots);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        out[p][r] = to_f32(dots[p][r].total());
        if constexpr (kFormat.scales != tensor::ScaleKind::kNone) out[p][r] = fma(out[p][r], scales[p].sc[0], zero());
        if constexpr (RowSums::kHalves) dots[p][r] = CellDot::from(dot_start<RowSums::kPerCell - 1>(r, cell));
      }
    }
    if constexpr (RowSums::kHalves) {
      step_quads<4, 8>(cell, dots);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) out[p][r] = fma(to_f32(dots[p][r].total()), scales[p].sc[1], out[p][r]);
      }
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

  PAGODA_SIMD void add_cell(size_t cell, const F32* d_w, const F32* c) {
    CellScales scales[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) scales[p] = cell_scales<kType>(at[p].scales);
    F32 scaled[kPanels][kRows];
    scaled_dots(cell, scales, scaled);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 d_a = splat(d[static_cast<size_t>(r) * n_cells + cell]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        acc[p][r] = fma(scaled[p][r], mul(d_w[p], d_a), acc[p][r]);
        if constexpr (kFormat.minimum) acc[p][r] = fma(scaled_sum(r, cell, scales[p]), mul(c[p], d_a), acc[p][r]);
      }
    }
  }

  PAGODA_SIMD void next_cell() {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      if (ahead != 0) {
        prefetch_bytes<kFormat.code_bytes()>(at[p].memory + ahead);
        if constexpr (kFormat.scale_bytes() != 0) prefetch_bytes<kFormat.scale_bytes()>(at[p].scales + ahead);
      }
      at[p].codes += kCodeBytes;
      at[p].memory += kFormat.code_bytes();
      at[p].scales += kFormat.scale_bytes();
    }
  }

  // Cells [begin, end); the cursors stand at the first.
  PAGODA_SIMD void run(size_t begin, size_t end) {
    for (size_t first = begin; first < end; first += kFormat.block_cells) {
      F32 d_w[kPanels];
      F32 c[kPanels];
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        d_w[p] = widen_f16(at[p].block);
        c[p] = kFormat.minimum ? widen_f16(at[p].block + 2 * tensor::kPanelRows) : zero();
        if (ahead != 0) prefetch_bytes<kFormat.block_bytes()>(at[p].block + ahead);
        at[p].block += kFormat.block_bytes();
      }
      for (size_t cell = first; cell < first + kFormat.block_cells; ++cell) {
        add_cell(cell, d_w, c);
        next_cell();
      }
    }
  }
};

// One tile of rows against kPanels panels, cells [begin, end).
struct Int8Job {
  const tensor::PanelMatrix* w;
  QuantRows x;
  Range rows;
  const int32_t* sums;  // of rows
  MatmulOutput out;
  int panel;
  int panels_end;  // of the call
  size_t begin;
  size_t end;
  const std::byte* expanded;  // [kPanels][kChunkBytes], for CodeSource::kScratch
};

template <tensor::DType kType, CodeSource kSource, int kRows, int kPanels>
void int8_rows(const Int8Job& job, int row) {
  constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  const auto n_cells = static_cast<size_t>(job.w->n_cols) / tensor::kCellCols;
  const tensor::PanelParts parts = tensor::panel_parts(kFormat, job.w->n_cols);
  const size_t at = static_cast<size_t>(row) * n_cells;
  Int8Tile<kType, kSource, kRows, kPanels> tile;
  tile.q = job.x.q + at * tensor::kCellCols;
  tile.d = job.x.d + at;
  tile.sums = job.sums + static_cast<size_t>(row - job.rows.begin) * n_cells * Sums<kType>::kPerCell;
  tile.n_cells = n_cells;
  const bool asks = row == job.rows.begin && job.panel + kPanels < job.panels_end;
  tile.ahead = asks ? kPanels * job.w->panel_bytes : 0;
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
    const std::byte* panel = job.w->panel(job.panel + p);
    tile.at[p].memory = panel + job.begin * kFormat.code_bytes();
    tile.at[p].codes =
        kSource == CodeSource::kScratch ? job.expanded + static_cast<size_t>(p) * kChunkBytes : tile.at[p].memory;
    tile.at[p].scales = panel + parts.scales + job.begin * kFormat.scale_bytes();
    tile.at[p].block = panel + parts.blocks + job.begin / kFormat.block_cells * kFormat.block_bytes();
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
      tile.acc[p][r] = job.begin == 0 ? zero() : job.out.load_panel(row + r, job.panel + p);
  }
  tile.run(job.begin, job.end);
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) job.out.store_panel(row + r, job.panel + p, tile.acc[p][r]);
  }
}

// All rows of a tile: kMatmulRows at a time, then 2, then 1.
template <tensor::DType kType, CodeSource kSource, int kPanels>
void int8_all_rows(const Int8Job& job) {
  int row = job.rows.begin;
  for (; row + kMatmulRows <= job.rows.end; row += kMatmulRows)
    int8_rows<kType, kSource, kMatmulRows, kPanels>(job, row);
  for (; row + 2 <= job.rows.end; row += 2) int8_rows<kType, kSource, 2, kPanels>(job, row);
  if (row < job.rows.end) int8_rows<kType, kSource, 1, kPanels>(job, row);
}

template <tensor::DType kType, int kPanels>
void int8_panels(Int8Job job, std::byte* expanded) {
  constexpr bool kExpands = tensor::panel_format(kType).low_bits != 8;
  const auto n_cells = static_cast<size_t>(job.w->n_cols) / tensor::kCellCols;
  if (job.rows.size() < kChunkRows) {
    job.begin = 0;
    job.end = n_cells;
    return int8_all_rows<kType, CodeSource::kPanel, kPanels>(job);
  }
  job.expanded = expanded;
  for (job.begin = 0; job.begin < n_cells; job.begin = job.end) {
    job.end = job.begin + kChunkCells < n_cells ? job.begin + kChunkCells : n_cells;
    if constexpr (kExpands) {
      for (int p = 0; p < kPanels; ++p) {
        expand_cells<kType>(job.w->panel(job.panel + p), job.begin, job.end,
                            expanded + static_cast<size_t>(p) * kChunkBytes);
      }
    }
    int8_all_rows<kType, kExpands ? CodeSource::kScratch : CodeSource::kPanel, kPanels>(job);
  }
}

template <tensor::DType kType>
void matmul_int8(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, const MatmulOutput& out,
                 std::byte* scratch) {
  auto* sums = reinterpret_cast<int32_t*>(scratch + kMatmulPanels * kChunkBytes);
  for (int begin = rows.begin; begin < rows.end; begin += kMatmulTileRows) {
    const Range tile{begin, begin + kMatmulTileRows < rows.end ? begin + kMatmulTileRows : rows.end};
    if constexpr (Sums<kType>::kUsed) Sums<kType>::fill(x.quant, tile, sums);
    Int8Job job{&w, x.quant, tile, sums, out, panels.begin, panels.end, 0, 0, nullptr};
    if (kMatmulPanels == 1 || tile.size() >= kMatmulRows) {
      for (; job.panel + kMatmulPanels <= panels.end; job.panel += kMatmulPanels) {
        int8_panels<kType, kMatmulPanels>(job, scratch);
      }
    }
    if constexpr (kMatmulPanels > 1) {
      for (; job.panel < panels.end; ++job.panel) int8_panels<kType, 1>(job, scratch);
    }
  }
}
