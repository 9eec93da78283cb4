// Rows of logits on avx512.
#include "kernels/logits.h"

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/math.h"
#include "kernels/table.h"

// clang-format off
#include "kernels/avx512/begin.h"
#include "kernels/avx512/simd.h"
#include "kernels/avx512/simd_logits.h"
#include "kernels/generic/math.h"
#include "kernels/generic/logits.h"
#include "kernels/avx512/end.h"
// clang-format on

namespace pagoda::kernels {

void fill_logits_avx512(KernelTable& table) {
  table.logit_tiles = avx512::logit_tiles;
  table.exp_sums = avx512::exp_sums;
  table.find_between = avx512::find_between;
  table.softcap = avx512::softcap_logits;
  table.argmax = avx512::argmax;
  table.log_sum_exp = avx512::log_sum_exp;
}

}  // namespace pagoda::kernels
