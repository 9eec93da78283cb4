// Rows of activations on avx2.
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/math.h"
#include "kernels/table.h"

// clang-format off
#include "kernels/avx2/begin.h"
#include "kernels/avx2/simd.h"
#include "kernels/generic/math.h"
#include "kernels/generic/rows.h"
#include "kernels/avx2/end.h"
// clang-format on

namespace pagoda::kernels {

void fill_rows_avx2(KernelTable& table) {
  table.rms_norm = avx2::rms_norm;
  table.add = avx2::add_rows;
  table.add_bias = avx2::add_bias;
  table.scale = avx2::scale;
  table.gated[static_cast<int>(Activation::kSilu)] = avx2::gated<avx2::SiluOp>;
  table.gated[static_cast<int>(Activation::kGeluTanh)] = avx2::gated<avx2::GeluTanhOp>;
  table.rope[static_cast<int>(RopeStyle::kAdjacent)] = avx2::rope_adjacent;
  table.rope[static_cast<int>(RopeStyle::kHalves)] = avx2::rope_halves;
}

}  // namespace pagoda::kernels
