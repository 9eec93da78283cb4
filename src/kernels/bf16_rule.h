// How a number becomes bf16 in bf16 arithmetic, one scalar at a time. Internal to kernels.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/float16.h"

namespace pagoda::kernels {

// Nearest, ties to even; a denormal is 0 with its sign, a NaN becomes quiet. Independent of the thread's mode.
// Source: Intel SDM vol. 2, VCVTNE2PS2BF16.
constexpr uint16_t round_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool tiny = (bits & 0x7F800000U) == 0;
  return tiny ? static_cast<uint16_t>((bits >> 16) & 0x8000U) : tensor::f32_to_bf16(x);
}

}  // namespace pagoda::kernels
