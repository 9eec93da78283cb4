// Rows of logits on avx2.
#include "kernels/logits.h"

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/math.h"
#include "kernels/table.h"

// clang-format off
#include "kernels/avx2/begin.h"
#include "kernels/avx2/simd.h"
#include "kernels/avx2/simd_logits.h"
#include "kernels/generic/math.h"
#include "kernels/generic/logits.h"
#include "kernels/avx2/end.h"
// clang-format on

namespace pagoda::kernels {

void fill_logits_avx2(KernelTable& table) {
  table.logit_tiles = avx2::logit_tiles;
  table.exp_sums = avx2::exp_sums;
  table.find_between = avx2::find_between;
  table.softcap = avx2::softcap_logits;
  table.argmax = avx2::argmax;
  table.log_sum_exp = avx2::log_sum_exp;
}

}  // namespace pagoda::kernels
