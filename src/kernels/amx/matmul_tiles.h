// matmul in bf16 arithmetic on tiles, over a backend of tiles.h. Include inside a region, after a simd_bf16.h, dequantize.h and
// matmul_output.h.
// A is the activations as they are: up to two tiles of 16 rows. B is two panels' weights, dequantized once into scratch as pairs
// [16 pairs][16 outputs][2] of bf16, a tile per panel and cell. C is 16 rows x 16 outputs of y.
//   few rows (one block of 32): a pass over the cells per two panels; the next cell is dequantized while tiles multiply this one
//   many rows: tiles of kTileRowsShared rows, then chunks of cells, then two panels (dequantized), then blocks of 32 rows. A chunk of
//   two panels stays in L1 and a chunk of the rows in L2; sums wait in y between chunks.

inline constexpr size_t kCellPairBytes = 1024;  // of one cell of one panel
inline constexpr int kTileChunkCells = 18;      // two panels: 36 KB of 48 KB L1; 576 columns are one chunk
inline constexpr int kTileRowsShared = 1024;    // rows x chunk: 1.2 MB of 2 MB L2
inline constexpr int kBlockRows = 2 * kTileRows;
inline constexpr int kBlockPanels = 2;
inline constexpr size_t kTileWeightBytes = kBlockPanels * kTileChunkCells * kCellPairBytes;
inline constexpr size_t kTileScratchBytes = kTileWeightBytes + kCellPairBytes + 64;

// B's pairs of a cell: what TDPBF16PS reads.
struct PairColumns {
  static constexpr size_t kStep = kCellPairBytes;
  static constexpr size_t kTogether = 2;
  std::byte* out;

  PAGODA_SIMD void put(size_t pair, F32 even, F32 odd) const {
    store_i32(out + pair * kTileBytes, round_pairs(even, odd));
  }
};

// Two panels (or the last one), the columns of `cells`.
struct TileJob {
  const tensor::PanelMatrix* w;
  const uint16_t* x;  // [rows, n_cols]
  MatmulOutput out;
  Range cells;
  int panel;
  std::byte* weights;  // [kBlockPanels][kTileChunkCells][kCellPairBytes]
  float* edge;         // [16][16]: sums of a panel of which y has not all outputs

  std::byte* pairs(int p, int slot) const {
    return weights + static_cast<size_t>(p * kTileChunkCells + slot) * kCellPairBytes;
  }
};

// A block's rows: the first and the second tile's.
struct BlockRows {
  int begin;
  int n[2];
};

// Tiles: C of row tile r and panel p is 2 * r + p; A of r is 4 + r; B of p is 6 + p.
template <class Tiles>
void configure(Tiles& tiles, const BlockRows& rows) {
  TileConfig config;
  for (int r = 0; r < 2 && rows.n[r] > 0; ++r) {
    config.set(2 * r, rows.n[r]);
    config.set(2 * r + 1, rows.n[r]);
    config.set(4 + r, rows.n[r]);
  }
  config.set(6, kTilePairs);
  config.set(7, kTilePairs);
  tiles.configure(config);
}

template <class Tiles, int kRowTiles, int kPanels>
struct TileBlock {
  Tiles& tiles;
  const TileJob& job;
  const BlockRows& rows;

  template <int kR, int kP>
  PAGODA_SIMD void begin_sum() const {
    constexpr int kC = 2 * kR + kP;
    if (job.cells.begin == 0) return tiles.template zero<kC>();
    const int row = rows.begin + kR * kTileRows;
    const int panel = job.panel + kP;
    if (job.out.whole(panel)) {
      return tiles.template load<kC>(job.out.at(row, panel), static_cast<size_t>(job.out.ld) * sizeof(float));
    }
    for (int r = 0; r < rows.n[kR]; ++r) store(job.edge + r * kTileFloats, job.out.load_panel(row + r, panel));
    tiles.template load<kC>(job.edge, kTileBytes);
  }
  template <int kR, int kP>
  PAGODA_SIMD void end_sum() const {
    constexpr int kC = 2 * kR + kP;
    const int row = rows.begin + kR * kTileRows;
    const int panel = job.panel + kP;
    if (job.out.whole(panel)) {
      return tiles.template store<kC>(job.out.at(row, panel), static_cast<size_t>(job.out.ld) * sizeof(float));
    }
    tiles.template store<kC>(job.edge, kTileBytes);
    for (int r = 0; r < rows.n[kR]; ++r) job.out.store_panel(row + r, panel, load(job.edge + r * kTileFloats));
  }
  PAGODA_SIMD void begin() const {
    begin_sum<0, 0>();
    if constexpr (kPanels > 1) begin_sum<0, 1>();
    if constexpr (kRowTiles > 1) begin_sum<1, 0>();
    if constexpr (kRowTiles > 1 && kPanels > 1) begin_sum<1, 1>();
  }
  PAGODA_SIMD void end() const {
    end_sum<0, 0>();
    if constexpr (kPanels > 1) end_sum<0, 1>();
    if constexpr (kRowTiles > 1) end_sum<1, 0>();
    if constexpr (kRowTiles > 1 && kPanels > 1) end_sum<1, 1>();
  }

  // The cell's columns, from the pairs in `slot`.
  PAGODA_SIMD void add_cell(int cell, int slot) const {
    const auto n_cols = static_cast<size_t>(job.w->n_cols);
    const uint16_t* a =
        job.x + static_cast<size_t>(rows.begin) * n_cols + static_cast<size_t>(cell) * tensor::kCellCols;
    tiles.template load<6>(job.pairs(0, slot), kTileBytes);
    tiles.template load<4>(a, n_cols * sizeof(uint16_t));
    tiles.template dot_bf16<0, 4, 6>();
    if constexpr (kPanels > 1) {
      tiles.template load<7>(job.pairs(1, slot), kTileBytes);
      tiles.template dot_bf16<1, 4, 7>();
    }
    if constexpr (kRowTiles > 1) {
      tiles.template load<5>(a + kTileRows * n_cols, n_cols * sizeof(uint16_t));
      tiles.template dot_bf16<2, 5, 6>();
    }
    if constexpr (kRowTiles > 1 && kPanels > 1) tiles.template dot_bf16<3, 5, 7>();
  }
};

// Few rows: cells are dequantized one ahead of the tiles, into two slots by turns.
template <tensor::DType kType, class Tiles, int kRowTiles, int kPanels>
void few_rows(Tiles& tiles, const TileJob& job, const BlockRows& rows, size_t ahead) {
  const TileBlock<Tiles, kRowTiles, kPanels> block{tiles, job, rows};
  const auto dequantize = [&](int cell) __attribute__((always_inline)) {
    for (int p = 0; p < kPanels; ++p) {
      dequantize_cells<kType, PairColumns>(job.w->panel(job.panel + p), job.w->n_cols, {cell, cell + 1}, ahead,
                                           job.pairs(p, cell % 2));
    }
  };
  block.begin();
  dequantize(0);
  for (int cell = 0; cell < job.cells.end; ++cell) {
    if (cell + 1 < job.cells.end) dequantize(cell + 1);
    block.add_cell(cell, cell % 2);
  }
  block.end();
}

template <class Tiles, int kRowTiles, int kPanels>
void rows_of_chunk(Tiles& tiles, const TileJob& job, const BlockRows& rows) {
  const TileBlock<Tiles, kRowTiles, kPanels> block{tiles, job, rows};
  block.begin();
  for (int cell = job.cells.begin; cell < job.cells.end; ++cell) block.add_cell(cell, cell - job.cells.begin);
  block.end();
}

// The last rows of a tile: fewer than a block.
inline BlockRows rest_of(Range rows) {
  const int first = rows.size() < kTileRows ? rows.size() : kTileRows;
  return {rows.begin, {first, rows.size() - first}};
}

template <tensor::DType kType, class Tiles, int kPanels>
void panels_of_chunk(Tiles& tiles, const TileJob& job, Range rows, size_t ahead) {
  for (int p = 0; p < kPanels; ++p) {
    dequantize_cells<kType, PairColumns>(job.w->panel(job.panel + p), job.w->n_cols, job.cells, ahead, job.pairs(p, 0));
  }
  BlockRows block{rows.begin, {kTileRows, kTileRows}};
  configure(tiles, block);
  for (; block.begin + kBlockRows <= rows.end; block.begin += kBlockRows) {
    rows_of_chunk<Tiles, 2, kPanels>(tiles, job, block);
  }
  block = rest_of({block.begin, rows.end});
  if (block.n[0] == 0) return;
  configure(tiles, block);
  if (block.n[1] > 0) {
    rows_of_chunk<Tiles, 2, kPanels>(tiles, job, block);
  } else {
    rows_of_chunk<Tiles, 1, kPanels>(tiles, job, block);
  }
}

// Calls f(job, ahead) for every two panels with kPanels = 2, then perhaps for the last one with 1.
template <class F>
PAGODA_SIMD void each_panels(TileJob job, Range panels, const F& f) {
  job.panel = panels.begin;
  for (; job.panel + kBlockPanels <= panels.end; job.panel += kBlockPanels) {
    const bool more = job.panel + kBlockPanels < panels.end;
    f.template operator()<kBlockPanels>(job, more ? kBlockPanels * job.w->panel_bytes : 0);
  }
  if (job.panel < panels.end) f.template operator()<1>(job, 0);
}

template <tensor::DType kType, class Tiles>
void matmul_few_rows(const TileJob& job, Range panels, Range rows) {
  Tiles tiles;
  const BlockRows block = rest_of(rows);
  configure(tiles, block);
  each_panels(job, panels, [&]<int kPanels>(const TileJob& job, size_t ahead) {
    if (block.n[1] > 0) {
      few_rows<kType, Tiles, 2, kPanels>(tiles, job, block, ahead);
    } else {
      few_rows<kType, Tiles, 1, kPanels>(tiles, job, block, ahead);
    }
  });
}

template <tensor::DType kType, class Tiles>
void matmul_many_rows(TileJob job, Range panels, Range rows) {
  Tiles tiles;
  const int n_cells = job.cells.end;
  const int n_chunks = (n_cells + kTileChunkCells - 1) / kTileChunkCells;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    job.cells = {n_cells * chunk / n_chunks, n_cells * (chunk + 1) / n_chunks};
    each_panels(job, panels, [&]<int kPanels>(const TileJob& job, size_t ahead) {
      panels_of_chunk<kType, Tiles, kPanels>(tiles, job, rows, ahead);
    });
  }
}

template <class Tiles>
struct TileMatmul {
  TileJob job;
  Range panels;
  Range rows;

  template <tensor::DType kType>
  void run() const {
    if (rows.size() <= kBlockRows) return matmul_few_rows<kType, Tiles>(job, panels, rows);
    for (Range tile = rows; tile.begin < rows.end; tile.begin = tile.end) {
      tile.end = tile.begin + kTileRowsShared < rows.end ? tile.begin + kTileRowsShared : rows.end;
      matmul_many_rows<kType, Tiles>(job, panels, tile);
    }
  }
};

// matmul of bf16 arithmetic; scratch >= kTileScratchBytes.
template <class Tiles>
void matmul_tiles(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, float* y, int ld_y,
                  std::byte* scratch) {
  if (rows.size() <= 0 || panels.size() <= 0) return;
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch) + 63) / 64 * 64);
  const TileJob job{&w,
                    x.bf16,
                    {y, ld_y, w.n_rows},
                    {0, w.n_cols / tensor::kCellCols},
                    panels.begin,
                    aligned,
                    reinterpret_cast<float*>(aligned + kTileWeightBytes)};
  with_type(w.dtype, TileMatmul<Tiles>{job, panels, rows});
}
