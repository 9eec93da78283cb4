#include "kernels/kernels.h"

namespace pagoda::kernels {

// The largest user dequantizes one panel: 16 rows of f32. The int8 kernels put 16 rows of codes and a row tile's sums there.
size_t matmul_scratch_bytes(int n_cols) { return static_cast<size_t>(n_cols) * tensor::kPanelRows * sizeof(float); }

}  // namespace pagoda::kernels
