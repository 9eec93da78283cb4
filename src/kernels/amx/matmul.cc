#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own _mm512_undefined_*() (GCC bug 105593)
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/amx/tiles.h"
#include "kernels/table.h"
#include "tensor/panel.h"

// clang-format off
#include "kernels/amx/begin.h"
#include "kernels/avx512/simd.h"
namespace {  // this file's own: names here may mean something else in another file of the region
#include "kernels/avx512/simd_int8.h"
#include "kernels/amx/simd_bf16.h"
#include "kernels/generic/panel_codes.h"
#include "kernels/generic/dequantize.h"
#include "kernels/generic/matmul_output.h"
#include "kernels/generic/with_type.h"
#include "kernels/amx/matmul_tiles.h"
}  // namespace
#include "kernels/amx/end.h"
// clang-format on

namespace pagoda::kernels {

void fill_matmul_amx(KernelTable& table) {
  fill_matmul_avx512(table);
  table.matmul[static_cast<int>(Arithmetic::kBf16)] = amx::matmul_tiles<AmxTiles>;
}

}  // namespace pagoda::kernels
