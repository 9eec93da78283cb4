// The operands of an int8 matmul as its inner loop reads them. Include inside a region, after panel_codes.h.
// Weights come cell by cell from a panel (PanelSource) or from scratch, where they were expanded (ScratchSource): eight quads of
// codes and per part (a cell, or its halves where sub-scales are per half) a factor e = sc * d_w, its bias -kMagic * e and, with a
// minimum, m * c: all exact. Rows are packed beside each other, so that one pointer reaches a cell of all of them.

// The float kMagic + i has the bits kMagicBits + i for |i| < 2^22, and kMagic times a number of 21 bits is exact. So a dot that was
// counted up from kMagicBits is f32(dot) * e, rounded once, after fma(its bits as a float, e, -kMagic * e).
inline constexpr int32_t kMagicBits = 0x4B400000;
inline constexpr float kMagic = 12582912.0F;
static_assert(tensor::kCellCols * 255 * 127 < 1 << 22);

// What the inner loop must know of a type.
struct CellForm {
  int parts = 1;     // sums per cell
  int row_sums = 0;  // values per part and row besides d: a dot's start or a minimum's factor
  int minima = 0;    // per part
  int dot_bits = 0;
};
template <tensor::DType kType>
inline constexpr CellForm cell_form() {
  constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  constexpr bool kHalves =
      kFormat.scales == tensor::ScaleKind::kHalves || kFormat.scales == tensor::ScaleKind::kHalvesMin4;
  static_assert(!kFormat.minimum || kFormat.offset == 0);
  return {.parts = kHalves ? 2 : 1,
          .row_sums = kFormat.minimum || kDotOffset<kType> != 0 ? 1 : 0,
          .minima = kFormat.minimum ? 1 : 0,
          .dot_bits = dot_class(kDotBits<kType>)};
}

// ---- rows ------------------------------------------------------------------------------------------------------------------

// One row's cell: q [32] int8, d f32, then per part the dot's start as int32 (kMagicBits - offset * sum of q) or, with a minimum,
// s = d * f32(sum of q), rounded once.
template <CellForm kForm>
struct PackedRow {
  static constexpr size_t kD = tensor::kCellCols;
  static constexpr size_t kSums = kD + sizeof(float);
  static constexpr size_t kBytes = kSums + static_cast<size_t>(kForm.parts * kForm.row_sums) * sizeof(float);
};

template <tensor::DType kType>
size_t packed_row_bytes(int n_cols) {
  return static_cast<size_t>(n_cols) / tensor::kCellCols * PackedRow<cell_form<kType>()>::kBytes;
}

// Rows [rows) of x as [cell][row] into out.
template <tensor::DType kType>
void pack_block(const QuantRows& x, Range rows, std::byte* out) {
  constexpr CellForm kForm = cell_form<kType>();
  using Packed = PackedRow<kForm>;
  const auto n_cells = static_cast<size_t>(x.n_cols) / tensor::kCellCols;
  const auto height = static_cast<size_t>(rows.size());
  for (size_t r = 0; r < height; ++r) {
    const size_t at = (static_cast<size_t>(rows.begin) + r) * n_cells;
    std::byte* to = out + r * Packed::kBytes;
    for (size_t cell = at; cell < at + n_cells; ++cell, to += height * Packed::kBytes) {
      __builtin_memcpy(to, x.q + cell * tensor::kCellCols, tensor::kCellCols);
      __builtin_memcpy(to + Packed::kD, x.d + cell, sizeof(float));
      const int16_t* halves = x.sums16 + 2 * cell;
      for (size_t part = 0; part < kForm.parts * kForm.row_sums; ++part) {
        const int32_t sum = kForm.parts == 2 ? halves[part] : halves[0] + halves[1];
        const float s = static_cast<float>(sum) * x.d[cell];
        const int32_t start = kMagicBits - kDotOffset<kType> * sum;
        __builtin_memcpy(to + Packed::kSums + part * sizeof(float),
                         kForm.minima != 0 ? static_cast<const void*>(&s) : &start, sizeof(float));
      }
    }
  }
}

// ---- weights ---------------------------------------------------------------------------------------------------------------

// What a part's dots meet, 16 outputs each.
struct PartFactors {
  F32 e;        // sc * d_w
  F32 bias;     // -kMagic * e
  F32 minimum;  // m * c
};

// Bytes that come later, of which each cell asks for some.
struct Ahead {
  const std::byte* at;
  size_t cell_bytes;  // 0: none

  PAGODA_SIMD void next_cell() {
    for (size_t i = 0; i < cell_bytes; i += 64) prefetch_bytes<64>(at + i);
    at += cell_bytes;
  }
};

// A panel as it lies in memory.
template <tensor::DType kType>
struct PanelSource {
  static constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  static constexpr CellForm kForm = cell_form<kType>();
  static constexpr size_t kBlockCells = kFormat.block_cells;
  static constexpr size_t kCellBytes =
      kFormat.code_bytes() + kFormat.scale_bytes() + (kFormat.block_bytes() + kBlockCells - 1) / kBlockCells;

  const std::byte* codes;
  const std::byte* scales;
  const std::byte* block;
  Ahead ahead;
  F32 d;
  F32 c;

  PAGODA_SIMD static PanelSource at(const std::byte* panel, int n_cols, size_t cell, Ahead ahead) {
    const tensor::PanelParts parts = tensor::panel_parts(kFormat, n_cols);
    return {panel + cell * kFormat.code_bytes(),
            panel + parts.scales + cell * kFormat.scale_bytes(),
            panel + parts.blocks + cell / kBlockCells * kFormat.block_bytes(),
            ahead,
            zero(),
            zero()};
  }
  PAGODA_SIMD void begin_block() {
    d = widen_f16(block);
    if constexpr (kFormat.minimum) c = widen_f16(block + 2 * tensor::kPanelRows);
    block += kFormat.block_bytes();
  }
  template <int kQuad>
  PAGODA_SIMD I32 quad() const {
    return packed_quad<kType, kQuad>(codes);
  }
  template <int kPart>
  PAGODA_SIMD PartFactors factors() const {
    PartFactors f{d, zero(), c};
    if constexpr (kFormat.scales != tensor::ScaleKind::kNone) {
      const CellScales s = cell_scales<kType>(scales);
      f.e = mul(s.sc[kPart], d);
      if constexpr (kFormat.minimum) f.minimum = mul(s.m[kPart], c);
    }
    f.bias = mul(f.e, splat(-kMagic));
    return f;
  }
  PAGODA_SIMD void next_cell() {
    ahead.next_cell();
    codes += kFormat.code_bytes();
    scales += kFormat.scale_bytes();
  }
};

// A panel's cells in scratch, expanded.
template <CellForm kInForm>
struct ScratchSource {
  static constexpr CellForm kForm = kInForm;
  static constexpr size_t kBlockCells = 1;
  static constexpr size_t kFactorBytes = sizeof(float) * tensor::kPanelRows;
  static constexpr size_t kPartBytes = (2 + kForm.minima) * kFactorBytes;
  static constexpr size_t kCellBytes = 8 * tensor::kQuadBytes + kForm.parts * kPartBytes;

  const std::byte* cell;
  Ahead ahead;

  PAGODA_SIMD void begin_block() {}
  template <int kQuad>
  PAGODA_SIMD I32 quad() const {
    return load_i32(cell + kQuad * tensor::kQuadBytes);
  }
  template <int kPart>
  PAGODA_SIMD PartFactors factors() const {
    const auto* f = reinterpret_cast<const float*>(cell + 8 * tensor::kQuadBytes + kPart * kPartBytes);
    return {load(f), load(f + tensor::kPanelRows), kForm.minima != 0 ? load(f + 2 * tensor::kPanelRows) : zero()};
  }
  PAGODA_SIMD void next_cell() {
    cell += kCellBytes;
    ahead.next_cell();
  }
};

template <class Source, int kQuad = 0>
PAGODA_SIMD void expand_quads(const Source& w, std::byte* out) {
  store_i32(out + kQuad * tensor::kQuadBytes, w.template quad<kQuad>());
  if constexpr (kQuad < 7) expand_quads<Source, kQuad + 1>(w, out);
}
template <CellForm kForm, class Source, int kPart = 0>
PAGODA_SIMD void expand_factors(const Source& w, std::byte* out) {
  auto* to = reinterpret_cast<float*>(out + kPart * ScratchSource<kForm>::kPartBytes);
  const PartFactors f = w.template factors<kPart>();
  store(to, f.e);
  store(to + tensor::kPanelRows, f.bias);
  if constexpr (kForm.minima != 0) store(to + 2 * tensor::kPanelRows, f.minimum);
  if constexpr (kPart + 1 < kForm.parts) expand_factors<kForm, Source, kPart + 1>(w, out);
}

// Cells [cells) of a panel for ScratchSource.
template <tensor::DType kType>
void expand_cells(const std::byte* panel, int n_cols, Range cells, std::byte* out) {
  using Source = PanelSource<kType>;
  Source w = Source::at(panel, n_cols, static_cast<size_t>(cells.begin), {nullptr, 0});
  for (int first = cells.begin; first < cells.end; first += Source::kBlockCells) {
    w.begin_block();
    for (size_t i = 0; i < Source::kBlockCells; ++i) {
      expand_quads(w, out);
      expand_factors<Source::kForm>(w, out + 8 * tensor::kQuadBytes);
      out += ScratchSource<Source::kForm>::kCellBytes;
      w.next_cell();
    }
  }
}
