// The values of a panel's weights, once for every instruction set and type. Include inside a region, after panel_codes.h.
// A value is what dequantize_row gives: (d * sc) * code [+ c * m].

inline constexpr size_t kF32CellFloats = static_cast<size_t>(tensor::kCellCols) * tensor::kPanelRows;
inline constexpr size_t kCellPairs = tensor::kCellCols / 2;

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

// Where a cell's columns go, 16 outputs each: put(pair, even, odd) takes columns 2 * pair and 2 * pair + 1; put(column, w) takes one,
// where kTogether is 1.  kStep: values of out per cell.   This one: as f32, [32 columns][16 outputs].
struct F32Columns {
  static constexpr size_t kStep = kF32CellFloats;
  static constexpr size_t kTogether = 1;
  float* out;

  PAGODA_SIMD void put(size_t column, F32 w) const { store(out + column * tensor::kPanelRows, w); }
  PAGODA_SIMD void put(size_t pair, F32 even, F32 odd) const {
    put(2 * pair, even);
    put(2 * pair + 1, odd);
  }
};

// Types whose codes are indices of 16 values, where the instruction set looks values up.
template <tensor::DType kType>
inline constexpr bool kLookedUp = kFloatLookup && tensor::panel_format(kType).bits() == 4;

// What the 16 codes of such a type mean.
struct FloatCodes {
  float value[16];
};
template <tensor::DType kType>
inline constexpr FloatCodes kFloatCodes = [] {
  constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  FloatCodes codes{};
  for (int i = 0; i < 16; ++i) {
    codes.value[i] = static_cast<float>(kFormat.table ? tensor::kIq4Values[i] : i - kFormat.offset);
  }
  return codes;
}();

// Column kColumn of quad kQuad of a cell, as f32 integers; quad: as packed_quad gives it.
template <tensor::DType kType, int kQuad, int kColumn>
PAGODA_SIMD F32 code_values(const std::byte* cell, I32 quad) {
  if constexpr (kLookedUp<kType>) {
    const auto values = load(kFloatCodes<kType>.value);
    return lookup(values, shift<-8 * kColumn - 4 * (kQuad % 2)>(load_i32(cell + kQuad / 2 * tensor::kQuadBytes)));
  } else {
    return to_f32(column_codes<kType, kColumn>(quad));
  }
}

template <tensor::DType kType, int kQuad, int kColumn = 0>
PAGODA_SIMD void quad_values(const std::byte* cell, I32 quad, const AffineScale& s, F32 w[4]) {
  w[kColumn] = mul(s.scale, code_values<kType, kQuad, kColumn>(cell, quad));
  if constexpr (tensor::panel_format(kType).minimum) w[kColumn] = add(w[kColumn], s.minimum);
  if constexpr (kColumn < 3) quad_values<kType, kQuad, kColumn + 1>(cell, quad, s, w);
}

template <tensor::DType kType, int kQuad = 0, class Columns>
PAGODA_SIMD void dequantize_quads(const std::byte* cell, const AffineScale scales[2], const Columns& out) {
  F32 w[4];
  quad_values<kType, kQuad>(cell, packed_quad<kType, kQuad>(cell), scales[kQuad / 4], w);
  out.put(2 * kQuad, w[0], w[1]);
  out.put(2 * kQuad + 1, w[2], w[3]);
  if constexpr (kQuad < 7) dequantize_quads<kType, kQuad + 1>(cell, scales, out);
}

template <tensor::DType kType>
PAGODA_SIMD F32 float_column(const std::byte* cell, size_t column) {
  const size_t i = column * tensor::kPanelRows;
  if constexpr (kType == tensor::DType::kF32) return load(reinterpret_cast<const float*>(cell) + i);
  if constexpr (kType == tensor::DType::kF16) return widen_f16(cell + 2 * i);
  return widen_bf16(cell + 2 * i);
}

// Bytes of a cell's codes, or of a cell of floats.
template <tensor::DType kType>
inline constexpr size_t kCellBytes = kType == tensor::DType::kF32 ? 4 * kF32CellFloats
                                     : tensor::is_float(kType)    ? 2 * kF32CellFloats
                                                                  : tensor::panel_format(kType).code_bytes();

// Asks for one column's bytes at a time: asking for a whole cell first would wait for the memory.
template <tensor::DType kType, class Columns>
PAGODA_SIMD void dequantize_floats(const std::byte* cell, size_t ahead, const Columns& out) {
  constexpr size_t kColumnBytes = kCellBytes<kType> / tensor::kCellCols;
  constexpr size_t kStep = Columns::kTogether;
  for (size_t column = 0; column < static_cast<size_t>(tensor::kCellCols); column += kStep) {
    prefetch_bytes<kStep * kColumnBytes>(cell + column * kColumnBytes + ahead);
    const F32 first = float_column<kType>(cell, column);
    if constexpr (kStep == 1) {
      out.put(column, first);
    } else {
      out.put(column / 2, first, float_column<kType>(cell, column + 1));
    }
  }
}

template <tensor::DType kType, class Columns>
PAGODA_SIMD void dequantize_codes(const std::byte* panel, int n_cols, size_t cell, const Columns& out) {
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

// One cell of a panel; the codes or floats that lie `ahead` bytes further are asked for.
template <tensor::DType kType, class Columns>
PAGODA_SIMD void dequantize_cell(const std::byte* panel, int n_cols, size_t cell, size_t ahead, const Columns& out) {
  const std::byte* at = panel + cell * kCellBytes<kType>;
  if constexpr (tensor::is_float(kType)) {
    dequantize_floats<kType>(at, ahead, out);
  } else {
    prefetch_bytes<kCellBytes<kType>>(at + ahead);
    dequantize_codes<kType>(panel, n_cols, cell, out);
  }
}

// Cells [begin, end) of a panel, kStep values of Out apart in out.
template <tensor::DType kType, class Columns, class Out>
void dequantize_cells(const std::byte* panel, int n_cols, Range cells, size_t ahead, Out* out) {
  for (int cell = cells.begin; cell < cells.end; ++cell, out += Columns::kStep) {
    dequantize_cell<kType>(panel, n_cols, static_cast<size_t>(cell), ahead, Columns{out});
  }
}
