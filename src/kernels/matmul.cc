#include "kernels/kernels.h"

namespace pagoda::kernels {

// A chunk of expanded codes (int8) or dequantized columns (f32) of two panels, and the sums of a tile of 64 rows.
size_t matmul_scratch_bytes(int n_cols) { return (size_t{16} << 10) + 16 * static_cast<size_t>(n_cols); }

}  // namespace pagoda::kernels
