#include "tensor/dequant.h"

#include <cstring>

#include "base/check.h"
#include "tensor/float16.h"

namespace pagoda::tensor {
namespace {

// A decoder fills every field of the cell: `cell` is the cell's index within its block (always 0 for 32-element
// blocks).

void set_scales(QuantCell* out, float d, int32_t sc0, int32_t sc1) {
  out->d = d;
  out->c = 0.0F;
  out->sc[0] = sc0;
  out->sc[1] = sc1;
  out->m[0] = out->m[1] = 0;
}

void set_minimum(QuantCell* out, float c, int32_t m0, int32_t m1) {
  out->c = c;
  out->m[0] = m0;
  out->m[1] = m1;
}

// Low nibbles are codes 0..15, high nibbles 16..31.
template <typename F>
void unpack_nibbles(const uint8_t* qs, int8_t* codes, F code) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<int8_t>(code(qs[i] & 15, i));
    codes[i + 16] = static_cast<int8_t>(code(qs[i] >> 4, i + 16));
  }
}

void decode(const BlockQ4_0& block, int64_t /*cell*/, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), 1, 1);
  unpack_nibbles(block.qs, out->codes, [](int q, int) { return q - 8; });
}

void decode(const BlockQ4_1& block, int64_t /*cell*/, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), 1, 1);
  set_minimum(out, f16_to_f32(block.m), 1, 1);
  unpack_nibbles(block.qs, out->codes, [](int q, int) { return q; });
}

int fifth_bit(uint32_t qh, int i) { return static_cast<int>((qh >> i) & 1U) << 4; }

void decode(const BlockQ5_0& block, int64_t /*cell*/, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), 1, 1);
  unpack_nibbles(block.qs, out->codes, [qh = block.qh](int q, int i) { return (q | fifth_bit(qh, i)) - 16; });
}

void decode(const BlockQ5_1& block, int64_t /*cell*/, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), 1, 1);
  set_minimum(out, f16_to_f32(block.m), 1, 1);
  unpack_nibbles(block.qs, out->codes, [qh = block.qh](int q, int i) { return q | fifth_bit(qh, i); });
}

void decode(const BlockQ8_0& block, int64_t /*cell*/, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), 1, 1);
  std::memcpy(out->codes, block.qs, sizeof(block.qs));
}

void decode(const BlockQ2_K& block, int64_t cell, QuantCell* out) {
  const uint8_t s0 = block.scales[2 * cell];
  const uint8_t s1 = block.scales[2 * cell + 1];
  set_scales(out, f16_to_f32(block.d), s0 & 15, s1 & 15);
  set_minimum(out, -f16_to_f32(block.dmin), s0 >> 4, s1 >> 4);
  const uint8_t* qs = block.qs + cell / 4 * 32;
  const int shift = static_cast<int>(cell % 4) * 2;
  for (int i = 0; i < 32; ++i) out->codes[i] = static_cast<int8_t>((qs[i] >> shift) & 3);
}

// Sixteen 6-bit scales, biased by 32: low nibbles in bytes 0..7, high pairs in bytes 8..11.
int q3_scale(const uint8_t* scales, int64_t i) {
  const int low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
  const int high = (scales[8 + i % 4] >> (i / 4 * 2)) & 3;
  return (low | (high << 4)) - 32;
}

void decode(const BlockQ3_K& block, int64_t cell, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), q3_scale(block.scales, 2 * cell), q3_scale(block.scales, 2 * cell + 1));
  const uint8_t* qs = block.qs + cell / 4 * 32;
  const int shift = static_cast<int>(cell % 4) * 2;
  for (int i = 0; i < 32; ++i) {
    const int third_bit = (block.hmask[i] >> cell) & 1;
    out->codes[i] = static_cast<int8_t>(((qs[i] >> shift) & 3) + (third_bit << 2) - 4);
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes (Q4_K, Q5_K).
struct ScaleMin {
  int sc, m;
};
ScaleMin scale_min(const uint8_t* scales, int64_t i) {
  if (i < 4) return {scales[i] & 63, scales[i + 4] & 63};
  return {(scales[i + 4] & 15) | ((scales[i - 4] >> 2) & 48), (scales[i + 4] >> 4) | ((scales[i] >> 2) & 48)};
}

void decode(const BlockQ4_K& block, int64_t cell, QuantCell* out) {
  const ScaleMin s = scale_min(block.scales, cell);
  set_scales(out, f16_to_f32(block.d), s.sc, s.sc);
  set_minimum(out, -f16_to_f32(block.dmin), s.m, s.m);
  const uint8_t* qs = block.qs + cell / 2 * 32;
  const int shift = static_cast<int>(cell % 2) * 4;
  for (int i = 0; i < 32; ++i) out->codes[i] = static_cast<int8_t>((qs[i] >> shift) & 15);
}

void decode(const BlockQ5_K& block, int64_t cell, QuantCell* out) {
  const ScaleMin s = scale_min(block.scales, cell);
  set_scales(out, f16_to_f32(block.d), s.sc, s.sc);
  set_minimum(out, -f16_to_f32(block.dmin), s.m, s.m);
  const uint8_t* qs = block.qs + cell / 2 * 32;
  const int shift = static_cast<int>(cell % 2) * 4;
  for (int i = 0; i < 32; ++i) {
    const int high = (block.qh[i] >> cell) & 1;
    out->codes[i] = static_cast<int8_t>(((qs[i] >> shift) & 15) | (high << 4));
  }
}

void decode(const BlockQ6_K& block, int64_t cell, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), block.scales[2 * cell], block.scales[2 * cell + 1]);
  const int64_t half = cell / 4;
  const int64_t quarter = cell % 4;
  const uint8_t* ql = block.ql + half * 64 + quarter % 2 * 32;
  const uint8_t* qh = block.qh + half * 32;
  const int low_shift = static_cast<int>(quarter / 2) * 4;
  const int high_shift = static_cast<int>(quarter) * 2;
  for (int i = 0; i < 32; ++i) {
    const int q = ((ql[i] >> low_shift) & 15) | (((qh[i] >> high_shift) & 3) << 4);
    out->codes[i] = static_cast<int8_t>(q - 32);
  }
}

void decode(const BlockIQ4_NL& block, int64_t /*cell*/, QuantCell* out) {
  set_scales(out, f16_to_f32(block.d), 1, 1);
  unpack_nibbles(block.qs, out->codes, [](int q, int) { return kIq4Values[q]; });
}

void decode(const BlockIQ4_XS& block, int64_t cell, QuantCell* out) {
  const int low = (block.scales_l[cell / 2] >> (cell % 2 * 4)) & 15;
  const int high = (block.scales_h >> (2 * cell)) & 3;
  const int sc = (low | (high << 4)) - 32;
  set_scales(out, f16_to_f32(block.d), sc, sc);
  unpack_nibbles(block.qs + cell * 16, out->codes, [](int q, int) { return kIq4Values[q]; });
}

// Calls f with a null pointer to the type's block struct.
template <typename F>
void with_block(DType type, F f) {
  switch (type) {
    case DType::kQ4_0:
      return f(static_cast<const BlockQ4_0*>(nullptr));
    case DType::kQ4_1:
      return f(static_cast<const BlockQ4_1*>(nullptr));
    case DType::kQ5_0:
      return f(static_cast<const BlockQ5_0*>(nullptr));
    case DType::kQ5_1:
      return f(static_cast<const BlockQ5_1*>(nullptr));
    case DType::kQ8_0:
      return f(static_cast<const BlockQ8_0*>(nullptr));
    case DType::kQ2_K:
      return f(static_cast<const BlockQ2_K*>(nullptr));
    case DType::kQ3_K:
      return f(static_cast<const BlockQ3_K*>(nullptr));
    case DType::kQ4_K:
      return f(static_cast<const BlockQ4_K*>(nullptr));
    case DType::kQ5_K:
      return f(static_cast<const BlockQ5_K*>(nullptr));
    case DType::kQ6_K:
      return f(static_cast<const BlockQ6_K*>(nullptr));
    case DType::kIQ4_NL:
      return f(static_cast<const BlockIQ4_NL*>(nullptr));
    case DType::kIQ4_XS:
      return f(static_cast<const BlockIQ4_XS*>(nullptr));
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  CHECK(false && "not a quantized type");
}

void widen_row(DType type, const std::byte* bits, int64_t n_elements, float* out) {
  if (type == DType::kF32) {
    std::memcpy(out, bits, static_cast<size_t>(n_elements) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n_elements; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bits + 2 * i, sizeof(half));
    out[i] = type == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
}

}  // namespace

void expand_cell(DType type, const QuantCell& cell, float* out) {
  const bool minimum = has_minimum(type);
  for (int half = 0; half < 2; ++half) {
    const float scale = cell.d * static_cast<float>(cell.sc[half]);
    const float offset = cell.c * static_cast<float>(cell.m[half]);
    for (int i = half * 16; i < half * 16 + 16; ++i) {
      const float product = scale * static_cast<float>(cell.codes[i]);
      out[i] = minimum ? product + offset : product;
    }
  }
}

void decode_cell(DType type, const std::byte* row_blocks, int64_t cell_index, QuantCell* out) {
  with_block(type, [&]<typename Block>(const Block*) {
    const int64_t cells = info(type).block_elements / kCellElements;
    const auto* blocks = reinterpret_cast<const Block*>(row_blocks);
    decode(blocks[cell_index / cells], cell_index % cells, out);
  });
}

void dequantize_row(DType type, const std::byte* blocks, int64_t n_elements, float* out) {
  CHECK(n_elements % info(type).block_elements == 0);
  if (is_float(type)) return widen_row(type, blocks, n_elements, out);
  with_block(type, [&]<typename Block>(const Block*) {
    const int64_t cells = info(type).block_elements / kCellElements;
    const auto* block = reinterpret_cast<const Block*>(blocks);
    QuantCell cell;
    for (int64_t i = 0; i < n_elements; i += kCellElements) {
      const int64_t index = i / kCellElements;
      decode(block[index / cells], index % cells, &cell);
      expand_cell(type, cell, out + i);
    }
  });
}

}  // namespace pagoda::tensor
