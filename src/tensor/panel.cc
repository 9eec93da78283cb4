#include "tensor/panel.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "tensor/float16.h"

namespace pagoda::tensor {
namespace {

constexpr int kQuads = kCellCols / 4;
constexpr uint32_t kEachByte = 0x01010101U;

// The 32 stored codes of one lane, a quad per word, column j of a quad in byte j.
struct LaneCodes {
  uint32_t quads[kQuads];
};

// u of every table value; others cannot come from a file.
constexpr std::array<uint8_t, 256> kIq4Index = [] {
  std::array<uint8_t, 256> index{};
  for (uint8_t u = 0; u < 16; ++u) index[static_cast<uint8_t>(kIq4Values[u])] = u;
  return index;
}();

LaneCodes stored_codes(const PanelFormat& format, const int8_t codes[kCellCols]) {
  uint8_t u[kCellCols];
  for (int i = 0; i < kCellCols; ++i) {
    u[i] = format.table ? kIq4Index[static_cast<uint8_t>(codes[i])] : static_cast<uint8_t>(codes[i] + format.offset);
  }
  LaneCodes lane;
  std::memcpy(lane.quads, u, sizeof(u));
  return lane;
}

void meant_codes(const PanelFormat& format, const LaneCodes& lane, int8_t codes[kCellCols]) {
  uint8_t u[kCellCols];
  std::memcpy(u, lane.quads, sizeof(u));
  for (int i = 0; i < kCellCols; ++i) {
    codes[i] = format.table ? kIq4Values[u[i]] : static_cast<int8_t>(u[i] - format.offset);
  }
}

// A plane of `bits` bits of each code, which are the code's bits from first_bit on.
void write_plane(std::byte* plane, int bits, int first_bit, int lane, const LaneCodes& codes) {
  const int per_word = 8 / bits;
  const uint32_t mask = ((1U << bits) - 1) * kEachByte;
  for (int group = 0; group < bits; ++group) {
    uint32_t word = 0;
    for (int i = 0; i < per_word; ++i) word |= ((codes.quads[group * per_word + i] >> first_bit) & mask) << (i * bits);
    std::memcpy(plane + group * kQuadBytes + lane * 4, &word, sizeof(word));
  }
}

void read_plane(const std::byte* plane, int bits, int first_bit, int lane, LaneCodes* codes) {
  const int per_word = 8 / bits;
  const uint32_t mask = ((1U << bits) - 1) * kEachByte;
  for (int group = 0; group < bits; ++group) {
    uint32_t word = 0;
    std::memcpy(&word, plane + group * kQuadBytes + lane * 4, sizeof(word));
    for (int i = 0; i < per_word; ++i) codes->quads[group * per_word + i] |= ((word >> (i * bits)) & mask) << first_bit;
  }
}

void pack_scales(const PanelFormat& format, const QuantCell& cell, int lane, std::byte* scales) {
  const auto put = [&](int vector, int value) {
    scales[vector * kPanelRows + lane] = static_cast<std::byte>(value & 255);
  };
  switch (format.scales) {
    case ScaleKind::kNone:
      break;
    case ScaleKind::kCell:
      put(0, cell.sc[0]);
      break;
    case ScaleKind::kHalves:
      put(0, cell.sc[0]);
      put(1, cell.sc[1]);
      break;
    case ScaleKind::kCellMin:
      put(0, cell.sc[0]);
      put(1, cell.m[0]);
      break;
    case ScaleKind::kHalvesMin4:
      put(0, cell.sc[0] | cell.m[0] << 4);
      put(1, cell.sc[1] | cell.m[1] << 4);
      break;
  }
}

void unpack_scales(const PanelFormat& format, const std::byte* scales, int lane, QuantCell* cell) {
  const auto get = [&](int vector) { return static_cast<int>(scales[vector * kPanelRows + lane]); };
  const auto get_signed = [&](int vector) { return static_cast<int>(static_cast<int8_t>(get(vector))); };
  cell->sc[0] = cell->sc[1] = 1;
  cell->m[0] = cell->m[1] = format.minimum ? 1 : 0;
  switch (format.scales) {
    case ScaleKind::kNone:
      break;
    case ScaleKind::kCell:
      cell->sc[0] = cell->sc[1] = get_signed(0);
      break;
    case ScaleKind::kHalves:
      cell->sc[0] = get_signed(0);
      cell->sc[1] = get_signed(1);
      break;
    case ScaleKind::kCellMin:
      cell->sc[0] = cell->sc[1] = get(0);
      cell->m[0] = cell->m[1] = get(1);
      break;
    case ScaleKind::kHalvesMin4:
      for (int half = 0; half < 2; ++half) {
        cell->sc[half] = get(half) & 15;
        cell->m[half] = get(half) >> 4;
      }
      break;
  }
}

void put_f16(std::byte* place, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(place, &bits, sizeof(bits));
}

float get_f16(const std::byte* place) {
  uint16_t bits = 0;
  std::memcpy(&bits, place, sizeof(bits));
  return f16_to_f32(bits);
}

float float_element(DType type, const std::byte* panel, int column, int lane) {
  const size_t index = static_cast<size_t>(column) * kPanelRows + static_cast<size_t>(lane);
  if (type == DType::kF32) {
    float value = 0;
    std::memcpy(&value, panel + index * sizeof(float), sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, panel + index * sizeof(bits), sizeof(bits));
  return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

}  // namespace

size_t panel_bytes(DType type, int n_cols) {
  if (is_float(type)) return static_cast<size_t>(n_cols) * kPanelRows * (type == DType::kF32 ? 4 : 2);
  return (panel_parts(panel_format(type), n_cols).end + 63) / 64 * 64;
}

void pack_panel_cell(DType type, int n_cols, int cell, const QuantCell rows[kPanelRows], std::byte* panel) {
  const PanelFormat format = panel_format(type);
  const PanelParts parts = panel_parts(format, n_cols);
  std::byte* low = panel + static_cast<size_t>(cell) * format.code_bytes();
  std::byte* scales = panel + parts.scales + static_cast<size_t>(cell) * format.scale_bytes();
  std::byte* block = panel + parts.blocks + static_cast<size_t>(cell / format.block_cells) * format.block_bytes();
  for (int lane = 0; lane < kPanelRows; ++lane) {
    const QuantCell& row = rows[lane];
    const LaneCodes codes = stored_codes(format, row.codes);
    write_plane(low, format.low_bits, 0, lane, codes);
    if (format.high_bits != 0) write_plane(low + format.low_bytes(), format.high_bits, format.low_bits, lane, codes);
    pack_scales(format, row, lane, scales);
    put_f16(block + 2 * lane, row.d);
    if (format.minimum) put_f16(block + 2 * (kPanelRows + lane), row.c);
  }
}

void unpack_panel_cell(DType type, int n_cols, const std::byte* panel, int cell, int lane, QuantCell* out) {
  const PanelFormat format = panel_format(type);
  const PanelParts parts = panel_parts(format, n_cols);
  const std::byte* low = panel + static_cast<size_t>(cell) * format.code_bytes();
  LaneCodes codes{};
  read_plane(low, format.low_bits, 0, lane, &codes);
  if (format.high_bits != 0) read_plane(low + format.low_bytes(), format.high_bits, format.low_bits, lane, &codes);
  meant_codes(format, codes, out->codes);
  unpack_scales(format, panel + parts.scales + static_cast<size_t>(cell) * format.scale_bytes(), lane, out);
  const std::byte* block = panel + parts.blocks + static_cast<size_t>(cell / format.block_cells) * format.block_bytes();
  out->d = get_f16(block + 2 * lane);
  out->c = format.minimum ? get_f16(block + 2 * (kPanelRows + lane)) : 0.0F;
}

void dequantize_panel_row(const PanelMatrix& matrix, int row, float* out) {
  CHECK(row >= 0 && row < matrix.n_rows);
  const std::byte* panel = matrix.panel(row / kPanelRows);
  const int lane = row % kPanelRows;
  if (is_float(matrix.dtype)) {
    for (int column = 0; column < matrix.n_cols; ++column)
      out[column] = float_element(matrix.dtype, panel, column, lane);
    return;
  }
  QuantCell cell;
  for (int i = 0; i < matrix.n_cols / kCellCols; ++i) {
    unpack_panel_cell(matrix.dtype, matrix.n_cols, panel, i, lane, &cell);
    expand_cell(matrix.dtype, cell, out + i * kCellCols);
  }
}

}  // namespace pagoda::tensor
