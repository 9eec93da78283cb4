// The values of a panel's weights, once for every instruction set and type. Include inside a region, after panel_codes.h.
// A value is what dequantize_row gives: (d * sc) * code [+ c * m].

inline constexpr size_t kF32CellFloats = static_cast<size_t>(tensor::kCellCols) * tensor::kPanelRows;
inline constexpr size_t kCellQuads = tensor::kCellCols / 4;

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

// Where a cell's columns go, four at a time: put(quad, w) takes 16 outputs of columns 4 * quad ... 4 * quad + 3.
// As f32, [32 columns][16 outputs].
struct F32Columns {
  static constexpr size_t kStep = kF32CellFloats;
  float* out;

  PAGODA_SIMD void put(size_t quad, const F32 w[4]) const {
    float* to = out + quad * tensor::kQuadBytes;
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) store(to + i * tensor::kPanelRows, w[i]);
  }
};

template <tensor::DType kType, int kColumn = 0>
PAGODA_SIMD void quad_values(I32 quad, const AffineScale& s, F32 w[4]) {
  w[kColumn] = mul(s.scale, to_f32(column_codes<kType, kColumn>(quad)));
  if constexpr (tensor::panel_format(kType).minimum) w[kColumn] = add(w[kColumn], s.minimum);
  if constexpr (kColumn < 3) quad_values<kType, kColumn + 1>(quad, s, w);
}

template <tensor::DType kType, int kQuad = 0, class Columns>
PAGODA_SIMD void dequantize_quads(const std::byte* codes, const AffineScale scales[2], const Columns& out) {
  F32 w[4];
  quad_values<kType>(packed_quad<kType, kQuad>(codes), scales[kQuad / 4], w);
  out.put(kQuad, w);
  if constexpr (kQuad < 7) dequantize_quads<kType, kQuad + 1>(codes, scales, out);
}

template <tensor::DType kType>
PAGODA_SIMD F32 float_column(const std::byte* cell, size_t column) {
  const size_t i = column * tensor::kPanelRows;
  if constexpr (kType == tensor::DType::kF32) return load(reinterpret_cast<const float*>(cell) + i);
  if constexpr (kType == tensor::DType::kF16) return widen_f16(cell + 2 * i);
  return widen_bf16(cell + 2 * i);
}

// One cell of a panel.
template <tensor::DType kType, class Columns>
PAGODA_SIMD void dequantize_cell(const std::byte* panel, int n_cols, size_t cell, const Columns& out) {
  if constexpr (tensor::is_float(kType)) {
    const std::byte* p = panel + cell * kF32CellFloats * (kType == tensor::DType::kF32 ? 4 : 2);
    for (size_t quad = 0; quad < kCellQuads; ++quad) {
      F32 w[4];
#pragma GCC unroll 4
      for (size_t i = 0; i < 4; ++i) w[i] = float_column<kType>(p, 4 * quad + i);
      out.put(quad, w);
    }
  } else {
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
}

// Bytes of a cell's codes, or of a cell of floats.
template <tensor::DType kType>
inline constexpr size_t kCellBytes = kType == tensor::DType::kF32 ? 4 * kF32CellFloats
                                     : tensor::is_float(kType)    ? 2 * kF32CellFloats
                                                                  : tensor::panel_format(kType).code_bytes();

// Cells [begin, end) of a panel, kStep values of Out apart in out; what lies `ahead` bytes further is asked for.
template <tensor::DType kType, class Columns, class Out>
void dequantize_cells(const std::byte* panel, int n_cols, Range cells, size_t ahead, Out* out) {
  for (int cell = cells.begin; cell < cells.end; ++cell, out += Columns::kStep) {
    prefetch_bytes<kCellBytes<kType>>(panel + static_cast<size_t>(cell) * kCellBytes<kType> + ahead);
    dequantize_cell<kType>(panel, n_cols, static_cast<size_t>(cell), Columns{out});
  }
}
