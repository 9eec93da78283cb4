// PanelMatrix: a weight matrix repacked for kernels. 16 consecutive output rows form a panel; inside a panel the columns run in
// cells of 32, so that one vector lane is one output row and its sum runs over the columns in order (design: fixed order).
// Bits per weight are those of the file's type (at most 10 % more). n_rows is padded to 16 with zero rows.
// Written by weights/repack.cc, read by kernels; each type's cell layout is below.   Units: bytes unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace pagoda::tensor {

inline constexpr int kPanelRows = 16;
inline constexpr int kCellCols = 32;

struct PanelMatrix {
  DType dtype = DType::kF32;
  int n_rows = 0;                      // outputs, without padding
  int n_cols = 0;                      // inputs; a multiple of 32 (of 256 for K types)
  const std::byte* data = nullptr;     // [n_panels][panel_bytes], 64-byte aligned
  size_t panel_bytes = 0;

  int n_panels() const { return (n_rows + kPanelRows - 1) / kPanelRows; }
  const std::byte* panel(int i) const { return data + static_cast<size_t>(i) * panel_bytes; }
};

}  // namespace pagoda::tensor
