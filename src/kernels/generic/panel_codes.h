// The codes of a panel, expanded in registers to a byte each. Include inside a region, after simd.h and simd_int8.h.

// How Dot takes a type's codes: 8 bits for bytes and table values, else what the file stores.
template <tensor::DType kType>
inline constexpr int kDotBits = tensor::panel_format(kType).table ? 8 : tensor::panel_format(kType).bits();

// What Dot's codes exceed the type's meaning by.
template <tensor::DType kType>
inline constexpr int kDotOffset = kDotBits<kType> == 8 && kSignedBytes ? 0 : tensor::panel_format(kType).offset;

// The IQ4 values as Dot takes them.
struct Iq4Codes {
  int8_t value[16];
};
inline constexpr Iq4Codes iq4_codes() {
  Iq4Codes codes{};
  for (int i = 0; i < 16; ++i) codes.value[i] = static_cast<int8_t>(tensor::kIq4Values[i] + (kSignedBytes ? 0 : 128));
  return codes;
}
inline constexpr Iq4Codes kIq4Codes = iq4_codes();

PAGODA_SIMD I32 splat_byte(uint32_t value) { return splat_i32(static_cast<int32_t>(value * 0x01010101U)); }

// Shifts 32-bit lanes by a signed distance, to the left if positive.
template <int kDistance>
PAGODA_SIMD I32 shift(I32 a) {
  if constexpr (kDistance > 0) return shift_left<kDistance>(a);
  if constexpr (kDistance < 0) return shift_right_signed<-kDistance>(a);
  return a;
}

// Plane bits of quad kQuad, moved to bit kTo of each byte; the other bits are arbitrary.
template <int kBits, int kQuad, int kTo>
PAGODA_SIMD I32 plane_bits(const std::byte* plane) {
  constexpr int kQuads = 8 / kBits;
  return shift<kTo - kQuad % kQuads * kBits>(load_i32(plane + kQuad / kQuads * tensor::kQuadBytes));
}

// Quad kQuad of a cell whose codes start at `cell`, as the panel stores it.
template <tensor::DType kType, int kQuad>
PAGODA_SIMD I32 packed_quad(const std::byte* cell) {
  constexpr tensor::PanelFormat kFormat = tensor::panel_format(kType);
  I32 codes = plane_bits<kFormat.low_bits, kQuad, 0>(cell);
  if constexpr (kFormat.low_bits < 8) codes = bit_and(codes, splat_byte((1U << kFormat.low_bits) - 1));
  if constexpr (kFormat.high_bits > 0) {
    const I32 high = plane_bits<kFormat.high_bits, kQuad, kFormat.low_bits>(cell + kFormat.low_bytes());
    codes = or_masked(codes, high, splat_byte(((1U << kFormat.high_bits) - 1) << kFormat.low_bits));
  }
  if constexpr (kFormat.table) codes = lookup(kIq4Codes.value, codes);
  if constexpr (kFormat.low_bits == 8 && kSignedBytes) codes = bit_xor(codes, splat_byte(0x80));
  return codes;
}

// The sub-scales and minima of one cell. What a type does not have is unused and costs nothing.
struct CellScales {
  F32 sc[2];
  F32 m[2];
};

template <tensor::DType kType>
PAGODA_SIMD CellScales cell_scales(const std::byte* p) {
  constexpr tensor::ScaleKind kKind = tensor::panel_format(kType).scales;
  CellScales s{{zero(), zero()}, {zero(), zero()}};
  if constexpr (kKind == tensor::ScaleKind::kCell) s.sc[0] = s.sc[1] = widen_i8(p);
  if constexpr (kKind == tensor::ScaleKind::kHalves) {
    s.sc[0] = widen_i8(p);
    s.sc[1] = widen_i8(p + tensor::kPanelRows);
  }
  if constexpr (kKind == tensor::ScaleKind::kCellMin) {
    s.sc[0] = s.sc[1] = widen_u8(p);
    s.m[0] = s.m[1] = widen_u8(p + tensor::kPanelRows);
  }
  if constexpr (kKind == tensor::ScaleKind::kHalvesMin4) {
    for (int half = 0; half < 2; ++half) {
      const I32 both = widen_u8_i32(p + half * tensor::kPanelRows);
      s.sc[half] = to_f32(bit_and(both, splat_i32(15)));
      s.m[half] = to_f32(shift_right_signed<4>(both));
    }
  }
  return s;
}
