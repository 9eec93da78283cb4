// matmul in int8 arithmetic, once for every instruction set and quantized type. Include inside a region, after int8_operands.h and
// matmul_output.h.
// Per output lane the cells of 32 columns ascending, and in a cell its parts (the cell, or two halves of 16 where sub-scales are per
// half) (design: numerics):
//   acc = fma(fma(f32(dot), e, +0), d_a, acc), e = sc * d_w;   with a minimum then acc = fma(m * c, s, acc), s = d_a * f32(sum of q_a)
// e and m * c are exact, s is rounded once.
// Few rows read a panel as it lies, in blocks of as many rows as pays: unpacking again costs more than sums outside registers. Many rows: a tile of rows (in L2), then kInt8Panels panels, then
// chunks of cells, which are expanded into scratch (L1), then blocks of rows, then cells; sums wait in y between chunks.

// n things in the fewest pieces of at most `most`, of equal size or one more.
struct Pieces {
  int n;
  int count;

  Pieces(int things, int most) : n(things), count((things + most - 1) / most) {}
  Range operator[](int i) const { return {n * i / count, n * (i + 1) / count}; }
};

// How a tile of rows is cut.
inline Pieces row_blocks(int n_rows) { return {n_rows, n_rows <= kInt8FewRows ? kInt8FewBlock : kInt8Rows}; }

// kRows packed rows against kPanels panels.
template <class Source, int kRows, int kPanels>
struct Int8Tile {
  static constexpr CellForm kForm = Source::kForm;
  using Packed = PackedRow<kForm>;
  using CellDot = Dot<kForm.dot_bits>;

  const std::byte* x;  // [cell][kRows]
  Source w[kPanels];
  F32 acc[kPanels][kRows];

  PAGODA_SIMD F32 row_float(size_t row, size_t at) const {
    float value = 0;
    __builtin_memcpy(&value, x + row * Packed::kBytes + at, sizeof(value));
    return splat(value);
  }
  template <int kPart>
  PAGODA_SIMD I32 dot_start(size_t row) const {
    if constexpr (kForm.minima != 0 || kForm.row_sums == 0) return splat_i32(kMagicBits);
    int32_t value = 0;
    __builtin_memcpy(&value, x + row * Packed::kBytes + Packed::kSums + kPart * sizeof(value), sizeof(value));
    return splat_i32(value);
  }
  template <int kQuad>
  PAGODA_SIMD void step_quad(CellDot (*dots)[kRows]) const {
    I32 codes[kPanels];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) codes[p] = w[p].template quad<kQuad>();
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
      const auto* a = reinterpret_cast<const int8_t*>(x + r * Packed::kBytes + 4 * kQuad);
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) dots[p][r].template step<kQuad>(codes[p], a);
    }
  }
  // The dots of the columns of quads [kQuad, kEnd).
  template <int kQuad, int kEnd>
  PAGODA_SIMD void step_quads(CellDot (*dots)[kRows]) const {
    step_quad<kQuad>(dots);
    if constexpr (kQuad + 1 < kEnd) step_quads<kQuad + 1, kEnd>(dots);
  }

  template <int kPart>
  PAGODA_SIMD void add_part() {
    constexpr int kQuads = 8 / kForm.parts;
    CellDot dots[kPanels][kRows];
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) dots[p][r] = CellDot::from(dot_start<kPart>(r));
    }
    step_quads<kPart * kQuads, (kPart + 1) * kQuads>(dots);
    PartFactors f[kPanels];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) f[p] = w[p].template factors<kPart>();
#pragma GCC unroll 16
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        const F32 scaled = fma(from_bits(dots[p][r].total()), f[p].e, f[p].bias);
        acc[p][r] = fma(scaled, row_float(r, Packed::kD), acc[p][r]);
        if constexpr (kForm.minima != 0)
          acc[p][r] = fma(f[p].minimum, row_float(r, Packed::kSums + kPart * sizeof(float)), acc[p][r]);
      }
    }
    if constexpr (kPart + 1 < kForm.parts) add_part<kPart + 1>();
  }

  PAGODA_SIMD void run(size_t n_cells) {
    for (size_t first = 0; first < n_cells; first += Source::kBlockCells) {
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) w[p].begin_block();
      for (size_t i = 0; i < Source::kBlockCells; ++i) {
        add_part<0>();
        x += kRows * Packed::kBytes;
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) w[p].next_cell();
      }
    }
  }
};

// A block of rows against kPanels panels, some cells.
template <class Source, int kPanels>
struct Int8Job {
  MatmulOutput out;
  int panel[kPanels];  // may be the same twice, where there is no other
  Range cells;
  Source w[kPanels];
};

template <class Source, int kRows, int kPanels>
void int8_rows(const Int8Job<Source, kPanels>& job, const std::byte* x, int row) {
  Int8Tile<Source, kRows, kPanels> tile;
  tile.x = x + static_cast<size_t>(job.cells.begin) * kRows * PackedRow<Source::kForm>::kBytes;
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) {
    tile.w[p] = job.w[p];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      tile.acc[p][r] = job.cells.begin == 0 ? zero() : job.out.load_panel(row + r, job.panel[p]);
  }
  tile.run(static_cast<size_t>(job.cells.size()));
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) job.out.store_panel(row + r, job.panel[p], tile.acc[p][r]);
  }
}

// The rows [rows): from kLeast to kMost.
template <int kLeast, int kMost, class Source, int kPanels>
void int8_block(const Int8Job<Source, kPanels>& job, const std::byte* x, Range rows) {
  if (rows.size() == kMost) return int8_rows<Source, kMost, kPanels>(job, x, rows.begin);
  if constexpr (kMost > kLeast) int8_block<kLeast, kMost - 1>(job, x, rows);
}

// What a call multiplies.
struct Int8Call {
  const tensor::PanelMatrix* w;
  Range panels;
  MatmulOutput out;
  Range rows;           // of the tile
  const std::byte* x;   // the tile's rows, packed block by block
  std::byte* expanded;  // [kInt8Panels][kChunkCells] cells

  int n_cells() const { return w->n_cols / tensor::kCellCols; }
  Range rows_of(Range block) const { return {rows.begin + block.begin, rows.begin + block.end}; }
  // Where the block of rows that starts at `row` of the tile lies.
  const std::byte* packed_rows(int row, size_t row_bytes) const {
    return x + static_cast<size_t>(row) * static_cast<size_t>(n_cells()) * row_bytes;
  }
};

// Blocks of rows that share the asking for the panels that come next.
inline constexpr int kAskingBlocks = 4;
// How far ahead at least: a stream from memory that is asked for 6 KB ahead is a quarter slower than one of 8 to 16 KB.
inline constexpr size_t kLeastAhead = 8192;

// The panels from `panel` on, as they lie.
template <tensor::DType kType, int kPanels>
Int8Job<PanelSource<kType>, kPanels> panel_job(const Int8Call& call, int panel, Range cells) {
  using Source = PanelSource<kType>;
  const auto n_blocks = static_cast<size_t>(row_blocks(call.rows.size()).count);
  const size_t shares = n_blocks < kAskingBlocks ? n_blocks : kAskingBlocks;
  const size_t ahead_bytes = panel + kPanels < call.panels.end ? (Source::kCellBytes + shares - 1) / shares : 0;
  const auto begin = static_cast<size_t>(cells.begin);
  Int8Job<Source, kPanels> job{call.out, {}, cells, {}};
  for (int p = 0; p < kPanels; ++p) {
    job.panel[p] = panel + p < call.panels.end ? panel + p : panel;
    const std::byte* at = call.w->panel(job.panel[p]);
    const std::byte* ahead = at + std::max(kPanels * call.w->panel_bytes, kLeastAhead) + begin * Source::kCellBytes;
    job.w[p] = Source::at(at, call.w->n_cols, begin, {ahead, ahead_bytes});
  }
  return job;
}

// All blocks of rows, of kLeast to kMost rows, against a job's panels.
template <int kLeast, int kMost, class Source, int kPanels>
void int8_blocks(const Int8Call& call, Int8Job<Source, kPanels> job) {
  const Pieces blocks = row_blocks(call.rows.size());
  for (int i = 0; i < blocks.count; ++i) {
    int8_block<kLeast, kMost>(job, call.packed_rows(blocks[i].begin, PackedRow<Source::kForm>::kBytes),
                              call.rows_of(blocks[i]));
    for (Source& w : job.w) {
      w.ahead.at += w.ahead.cell_bytes * static_cast<size_t>(job.cells.size());
      if (i + 1 == kAskingBlocks) w.ahead.cell_bytes = 0;
    }
  }
}

template <tensor::DType kType>
void int8_few_rows(const Int8Call& call) {
  for (int panel = call.panels.begin; panel < call.panels.end; ++panel)
    int8_blocks<1, kInt8FewBlock>(call, panel_job<kType, 1>(call, panel, {0, call.n_cells()}));
}

inline constexpr int kChunkCells = 24;

// The panels from `panel` on, expanded.
template <tensor::DType kType>
void int8_chunk(const Int8Call& call, int panel, Range cells) {
  using Source = ScratchSource<cell_form<kType>()>;
  const auto packed = panel_job<kType, kInt8Panels>(call, panel, cells);
  Int8Job<Source, kInt8Panels> job{call.out, {}, cells, {}};
  for (int p = 0; p < kInt8Panels; ++p) {
    std::byte* expanded = call.expanded + static_cast<size_t>(p) * kChunkCells * Source::kCellBytes;
    expand_cells<kType>(call.w->panel(packed.panel[p]), call.w->n_cols, cells, expanded);
    job.panel[p] = packed.panel[p];
    job.w[p] = {expanded, packed.w[p].ahead};
  }
  int8_blocks<(kInt8Rows + 1) / 2, kInt8Rows>(call, job);
}

template <tensor::DType kType>
void int8_many_rows(const Int8Call& call) {
  constexpr int kBlockCells = tensor::panel_format(kType).block_cells;
  const Pieces chunks(call.n_cells() / kBlockCells, kChunkCells / kBlockCells);
  for (int panel = call.panels.begin; panel < call.panels.end; panel += kInt8Panels) {
    for (int i = 0; i < chunks.count; ++i) {
      const Range blocks = chunks[i];
      int8_chunk<kType>(call, panel, {blocks.begin * kBlockCells, blocks.end * kBlockCells});
    }
  }
}

// Packed rows of a tile take at most this, or what kInt8LeastTile rows do.
inline constexpr size_t kInt8TileBytes = size_t{512} << 10;
inline constexpr int kInt8LeastTile = 32;
inline constexpr size_t kExpandedBytes = size_t{44} << 10;

// Rows in tiles in blocks.
template <tensor::DType kType>
Pieces int8_tiles(int n_cols, Range rows) {
  const int fitting = static_cast<int>(kInt8TileBytes / packed_row_bytes<kType>(n_cols));
  return {rows.size(), fitting > kInt8LeastTile ? fitting : kInt8LeastTile};
}

template <tensor::DType kType>
void pack_tile(const QuantRows& x, Range tile, std::byte* out) {
  static_assert(PackedRow<cell_form<kType>()>::kBytes <= kPackedCellBytes);
  const Pieces blocks = row_blocks(tile.size());
  for (int i = 0; i < blocks.count; ++i) {
    pack_block<kType>(x, {tile.begin + blocks[i].begin, tile.begin + blocks[i].end},
                      out + packed_row_bytes<kType>(x.n_cols) * static_cast<size_t>(blocks[i].begin));
  }
}

struct PackCall {
  const QuantRows& x;
  Range rows;
  std::byte* out;

  template <tensor::DType kType>
  void run() const {
    if constexpr (!tensor::is_float(kType)) {
      const Pieces tiles = int8_tiles<kType>(x.n_cols, rows);
      for (int i = 0; i < tiles.count; ++i) {
        pack_tile<kType>(x, {rows.begin + tiles[i].begin, rows.begin + tiles[i].end},
                         out + packed_row_bytes<kType>(x.n_cols) * static_cast<size_t>(tiles[i].begin));
      }
    }
  }
};

template <tensor::DType kType>
void matmul_int8(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, const MatmulOutput& out,
                 std::byte* scratch) {
  using Source = ScratchSource<cell_form<kType>()>;
  static_assert(kInt8Panels * kChunkCells * Source::kCellBytes <= kExpandedBytes);
  const PackedRows& packed = x.packed;
  const bool is_packed =
      packed.data != nullptr && packed.type == kType && packed.rows.begin == rows.begin && packed.rows.end == rows.end;
  const Pieces tiles = int8_tiles<kType>(w.n_cols, rows);
  for (int i = 0; i < tiles.count; ++i) {
    const Range tile{rows.begin + tiles[i].begin, rows.begin + tiles[i].end};
    std::byte* const own = scratch + kExpandedBytes;
    if (!is_packed) pack_tile<kType>(x.quant, tile, own);
    const std::byte* const at =
        is_packed ? packed.data + packed_row_bytes<kType>(w.n_cols) * static_cast<size_t>(tiles[i].begin) : own;
    const Int8Call call{&w, panels, out, tile, at, scratch};
    tile.size() <= kInt8FewRows ? int8_few_rows<kType>(call) : int8_many_rows<kType>(call);
  }
}
