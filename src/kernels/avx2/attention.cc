// Cache writes and attention on avx2.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/attention_args.h"
#include "kernels/bf16_rule.h"
#include "kernels/int8_rule.h"
#include "kernels/math.h"
#include "kernels/rotation.h"
#include "kernels/table.h"
#include "tensor/float16.h"

// clang-format off
#include "kernels/avx2/begin.h"
#include "kernels/avx2/simd.h"
#include "kernels/avx2/simd_attention.h"
#include "kernels/generic/math.h"
#include "kernels/generic/int8_rule.h"
#include "kernels/generic/rotation.h"
#include "kernels/generic/kv_write.h"
#include "kernels/generic/bf16_rule.h"
#include "kernels/generic/attention_scores.h"
#include "kernels/generic/attention_values.h"
#include "kernels/generic/attention_work.h"
#include "kernels/generic/attention.h"
#include "kernels/generic/attention_merge.h"
#include "kernels/avx2/end.h"
// clang-format on

namespace pagoda::kernels {

void fill_attention_avx2(KernelTable& table) {
  table.kv_write = avx2::kv_write;
  table.attention_prepare[static_cast<int>(Arithmetic::kInt8)] = avx2::attention_prepare<Arithmetic::kInt8>;
  table.attention_prepare[static_cast<int>(Arithmetic::kF32)] = avx2::attention_prepare<Arithmetic::kF32>;
  table.attention_prepare[static_cast<int>(Arithmetic::kBf16)] = avx2::attention_prepare<Arithmetic::kBf16>;
  table.attention_span[static_cast<int>(Arithmetic::kInt8)] = avx2::attention_span<Arithmetic::kInt8>;
  table.attention_span[static_cast<int>(Arithmetic::kF32)] = avx2::attention_span<Arithmetic::kF32>;
  table.attention_span[static_cast<int>(Arithmetic::kBf16)] = avx2::attention_span<Arithmetic::kBf16>;
  table.attention_merge = avx2::attention_merge;
  table.attention_finish = avx2::attention_finish;
}

}  // namespace pagoda::kernels
