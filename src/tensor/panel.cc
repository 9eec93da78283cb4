#include "tensor/panel.h"

#include <cstring>

#include "base/check.h"
#include "tensor/float16.h"

namespace pagoda::tensor {
namespace {

// A run of code bits: plane bits `bits`, quad q of lane `lane`, column j of the quad.
struct CodePlace {
  size_t byte;
  int shift;
};
constexpr CodePlace code_place(int bits, int column, int lane) {
  const int quad = column / 4;
  const int quads = 8 / bits;
  return {static_cast<size_t>(quad / quads * kQuadBytes + lane * 4 + column % 4), quad % quads * bits};
}

int read_plane(const std::byte* plane, int bits, int column, int lane) {
  const CodePlace place = code_place(bits, column, lane);
  return (static_cast<int>(plane[place.byte]) >> place.shift) & ((1 << bits) - 1);
}

void write_plane(std::byte* plane, int bits, int column, int lane, int value) {
  const CodePlace place = code_place(bits, column, lane);
  const int mask = ((1 << bits) - 1) << place.shift;
  plane[place.byte] =
      static_cast<std::byte>((static_cast<int>(plane[place.byte]) & ~mask) | (value << place.shift & mask));
}

// u of a code; a code that no table entry has cannot come from a file and becomes entry 8 (value 1).
int stored_code(const PanelFormat& format, int code) {
  if (!format.table) return code + format.offset;
  for (int u = 0; u < 16; ++u) {
    if (kIq4Values[u] == code) return u;
  }
  return 8;
}

int8_t meant_code(const PanelFormat& format, int u) {
  return static_cast<int8_t>(format.table ? kIq4Values[u] : u - format.offset);
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
    for (int column = 0; column < kCellCols; ++column) {
      const int u = stored_code(format, row.codes[column]);
      write_plane(low, format.low_bits, column, lane, u);
      if (format.high_bits != 0) {
        write_plane(low + format.low_bytes(), format.high_bits, column, lane, u >> format.low_bits);
      }
    }
    pack_scales(format, row, lane, scales);
    put_f16(block + 2 * lane, row.d);
    if (format.minimum) put_f16(block + 2 * (kPanelRows + lane), row.c);
  }
}

void unpack_panel_cell(DType type, int n_cols, const std::byte* panel, int cell, int lane, QuantCell* out) {
  const PanelFormat format = panel_format(type);
  const PanelParts parts = panel_parts(format, n_cols);
  const std::byte* low = panel + static_cast<size_t>(cell) * format.code_bytes();
  for (int column = 0; column < kCellCols; ++column) {
    int u = read_plane(low, format.low_bits, column, lane);
    if (format.high_bits != 0) {
      u |= read_plane(low + format.low_bytes(), format.high_bits, column, lane) << format.low_bits;
    }
    out->codes[column] = meant_code(format, u);
  }
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
