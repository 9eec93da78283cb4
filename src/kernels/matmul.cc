#include "kernels/kernels.h"

namespace pagoda::kernels {

// f32: one dequantized panel.   int8: a chunk of expanded codes of two panels, and the sums of a tile of 64 rows.
size_t matmul_scratch_bytes(int n_cols) {
  return (size_t{16} << 10) + static_cast<size_t>(n_cols) * tensor::kPanelRows * sizeof(float);
}

}  // namespace pagoda::kernels
