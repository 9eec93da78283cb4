#include "weights/repack.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/dequant.h"

namespace pagoda::weights {
namespace {

using tensor::kCellCols;
using tensor::kPanelRows;
using tensor::QuantCell;

constexpr int64_t kMaxDim = std::numeric_limits<int32_t>::max() - kPanelRows;

// [rows][columns] to [columns][16 rows] for elements of T.
template <typename T>
void interleave(const std::byte* rows, size_t row_bytes, int n_rows, int n_cols, std::byte* panel) {
  for (int lane = 0; lane < n_rows; ++lane) {
    const std::byte* row = rows + static_cast<size_t>(lane) * row_bytes;
    std::byte* out = panel + static_cast<size_t>(lane) * sizeof(T);
    for (int column = 0; column < n_cols; ++column) {
      std::memcpy(out, row, sizeof(T));
      row += sizeof(T);
      out += kPanelRows * sizeof(T);
    }
  }
}

void pack_cells(tensor::DType dtype, const std::byte* rows, size_t row_bytes, int n_rows, int n_cols,
                std::byte* panel) {
  QuantCell cells[kPanelRows] = {};
  for (int cell = 0; cell < n_cols / kCellCols; ++cell) {
    for (int lane = 0; lane < n_rows; ++lane) {
      tensor::decode_cell(dtype, rows + static_cast<size_t>(lane) * row_bytes, cell, &cells[lane]);
    }
    tensor::pack_panel_cell(dtype, n_cols, cell, cells, panel);
  }
}

}  // namespace

uint64_t held_bytes(tensor::DType dtype, int n_dims, int64_t rows, int64_t cols) {
  if (n_dims < 2) return static_cast<uint64_t>(cols) * sizeof(float);
  const int64_t n_panels = (rows + kPanelRows - 1) / kPanelRows;
  return static_cast<uint64_t>(n_panels) * tensor::panel_bytes(dtype, static_cast<int>(cols));
}

Result<RepackedMatrix> allocate_panels(const FileMatrix& source, tensor::Arena& arena) {
  const tensor::DTypeInfo& type = tensor::info(source.dtype);
  const int64_t unit = std::max<int64_t>(kCellCols, type.block_elements);
  if (source.n_rows <= 0 || source.n_cols <= 0 || source.n_rows > kMaxDim || source.n_cols > kMaxDim) {
    return fail(ErrorCode::kUnsupported, "a weight of {} x {} elements", source.n_rows, source.n_cols);
  }
  if (source.n_cols % unit != 0) {
    return fail(ErrorCode::kUnsupported, "a {} weight with {} columns: supported are multiples of {}", type.name,
                source.n_cols, unit);
  }
  const int64_t wanted = source.n_rows * tensor::row_bytes(source.dtype, source.n_cols);  // < 2^31 * 2^33
  if (static_cast<int64_t>(source.bytes.size()) != wanted) {
    return fail(ErrorCode::kBadFile, "a {} weight of {} x {} has {} bytes instead of {}", type.name, source.n_rows,
                source.n_cols, source.bytes.size(), wanted);
  }
  RepackedMatrix packed;
  packed.view.dtype = source.dtype;
  packed.view.n_rows = static_cast<int>(source.n_rows);
  packed.view.n_cols = static_cast<int>(source.n_cols);
  packed.view.panel_bytes = tensor::panel_bytes(source.dtype, packed.view.n_cols);
  TRY_ASSIGN(packed.bytes, arena.take(packed.view.bytes()));
  packed.view.data = packed.bytes.data();
  return packed;
}

void repack_panels(const FileMatrix& source, int begin, int end, const RepackedMatrix& target) {
  const tensor::PanelMatrix& view = target.view;
  CHECK(view.dtype == source.dtype && view.n_rows == source.n_rows && view.n_cols == source.n_cols);
  CHECK(begin >= 0 && begin <= end && end <= view.n_panels());
  const auto row_bytes = static_cast<size_t>(tensor::row_bytes(source.dtype, source.n_cols));
  for (int i = begin; i < end; ++i) {
    const int first = i * kPanelRows;
    const int n_rows = std::min(kPanelRows, view.n_rows - first);
    const std::byte* rows = source.bytes.data() + static_cast<size_t>(first) * row_bytes;
    std::byte* panel = target.bytes.data() + static_cast<size_t>(i) * view.panel_bytes;
    if (source.dtype == tensor::DType::kF32) {
      interleave<uint32_t>(rows, row_bytes, n_rows, view.n_cols, panel);
    } else if (tensor::is_float(source.dtype)) {
      interleave<uint16_t>(rows, row_bytes, n_rows, view.n_cols, panel);
    } else {
      pack_cells(source.dtype, rows, row_bytes, n_rows, view.n_cols, panel);
    }
  }
}

Result<RepackedMatrix> repack(const FileMatrix& source, tensor::Arena& arena) {
  TRY_ASSIGN(RepackedMatrix packed, allocate_panels(source, arena));
  repack_panels(source, 0, packed.view.n_panels(), packed);
  return packed;
}

}  // namespace pagoda::weights
