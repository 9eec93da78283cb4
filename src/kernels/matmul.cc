#include "kernels/kernels.h"

namespace pagoda::kernels {

// A chunk of two panels' weights: expanded codes (int8), columns (f32) or tiles of pairs (AMX, the largest: amx/matmul_tiles.h); and
// a row of cells (ref) or the sums of a tile of 64 rows (int8).
size_t matmul_scratch_bytes(int n_cols) { return (size_t{40} << 10) + 16 * static_cast<size_t>(n_cols); }

}  // namespace pagoda::kernels
