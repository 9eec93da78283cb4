// How a number becomes int8 in the cache and in queries, one scalar at a time. Internal to kernels.
#pragma once

#include <cstdint>

#include "kernels/math.h"
#include "tensor/float16.h"

namespace pagoda::kernels {

inline constexpr float kInt8Max = 127.0f;
inline constexpr uint16_t kF16Largest = 0x7BFF;

// round-half-even(x / scale), clamped to +-127; 0 where scale is 0. A NaN gives -127.
inline int8_t quantize_i8(float x, float scale) {
  if (scale == 0.0f) return 0;
  float q = x / scale;
  q = q > -kInt8Max ? q : -kInt8Max;
  q = q < kInt8Max ? q : kInt8Max;
  return static_cast<int8_t>(round_half_even(q));
}

// A cached token's scale: f16(amax / 127), at most the largest finite f16.
inline uint16_t kv_scale(float amax) {
  const uint16_t scale = tensor::f32_to_f16(amax / kInt8Max);
  return scale < kF16Largest ? scale : kF16Largest;
}

}  // namespace pagoda::kernels
