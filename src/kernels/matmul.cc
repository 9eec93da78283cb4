#include "kernels/kernels.h"

namespace pagoda::kernels {

// A chunk of two panels' weights: expanded codes (int8), columns (f32) or tiles of pairs (AMX, the largest of those: amx/matmul_tiles.h);
// and a row of cells (ref) or a tile of packed rows (int8: generic/matmul_int8.h).
size_t matmul_scratch_bytes(int n_cols) { return (size_t{556} << 10) + 44 * static_cast<size_t>(n_cols); }

}  // namespace pagoda::kernels
