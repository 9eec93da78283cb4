// Rows of activations on avx512.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/math.h"
#include "kernels/table.h"

// clang-format off
#include "kernels/avx512/begin.h"
#include "kernels/avx512/simd.h"
#include "kernels/generic/math.h"
#include "kernels/generic/rows.h"
#include "kernels/avx512/end.h"
// clang-format on

namespace pagoda::kernels {

void fill_rows_avx512(KernelTable& table) {
  table.rms_norm = avx512::rms_norm;
  table.add = avx512::add_rows;
  table.add_bias = avx512::add_bias;
  table.scale = avx512::scale;
  table.gated[static_cast<int>(Activation::kSilu)] = avx512::gated<avx512::SiluOp>;
  table.gated[static_cast<int>(Activation::kGeluTanh)] = avx512::gated<avx512::GeluTanhOp>;
  table.rope[static_cast<int>(RopeStyle::kAdjacent)] = avx512::rope_adjacent;
  table.rope[static_cast<int>(RopeStyle::kHalves)] = avx512::rope_halves;
}

}  // namespace pagoda::kernels
