#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/table.h"
#include "tensor/panel.h"

// clang-format off
#include "kernels/avx2/begin.h"
#include "kernels/avx2/simd.h"
namespace {  // this file's own: names here may mean something else in another file of the region
#include "kernels/avx2/simd_int8.h"
#include "kernels/generic/bf16_rule.h"
#include "kernels/avx2/simd_bf16.h"
#include "kernels/generic/quantize.h"
#include "kernels/generic/panel_codes.h"
#include "kernels/generic/dequantize.h"
#include "kernels/generic/matmul_output.h"
#include "kernels/generic/int8_operands.h"
#include "kernels/generic/matmul_int8.h"
#include "kernels/generic/matmul_float.h"
#include "kernels/generic/matmul_bf16.h"
#include "kernels/generic/with_type.h"
#include "kernels/generic/matmul_table.h"
}  // namespace
#include "kernels/avx2/end.h"
// clang-format on

namespace pagoda::kernels {

void fill_matmul_avx2(KernelTable& table) { avx2::fill_matmul(table); }

}  // namespace pagoda::kernels
