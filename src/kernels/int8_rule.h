// How a number becomes an integer in the cache, in queries and in weights of P.V, one scalar at a time. Internal to kernels.
#pragma once

#include <cstdint>

#include "kernels/math.h"
#include "tensor/float16.h"

namespace pagoda::kernels {

inline constexpr float kInt8Max = 127.0f;
inline constexpr float kInt4Max = 15.0f;  // of the odd integers 2 u - 15
inline constexpr uint16_t kF16Largest = 0x7BFF;

// round-half-even(x / scale), clamped to +-127; 0 where scale is 0. A NaN gives -127.
inline int8_t quantize_i8(float x, float scale) {
  if (scale == 0.0f) return 0;
  float q = x / scale;
  q = q > -kInt8Max ? q : -kInt8Max;
  q = q < kInt8Max ? q : kInt8Max;
  return static_cast<int8_t>(round_half_even(q));
}

// u of the nearest 2 u - 15 to x / scale, clamped to [0, 15]; 0 where scale is 0. A NaN gives 0.
inline uint8_t quantize_i4(float x, float scale) {
  if (scale == 0.0f) return 0;
  float u = (x / scale + kInt4Max) * 0.5f;
  u = u > 0.0f ? u : 0.0f;
  u = u < kInt4Max ? u : kInt4Max;
  return static_cast<uint8_t>(round_half_even(u));
}

// A cached token's scale: f16(amax / largest), at most the largest finite f16; largest: kInt8Max or kInt4Max.
inline uint16_t kv_scale(float amax, float largest) {
  const uint16_t scale = tensor::f32_to_f16(amax / largest);
  return scale < kF16Largest ? scale : kF16Largest;
}

// Weights of P.V over int8 V in int8 arithmetic: w = p * s_v, W the largest of those that a row sees in a span. 8 bits would
// not do: where an attention sink has nearly all of p, the other tokens share the rest.
//   q = round-half-even(w * (32767 / W));  O = f32(sum of q * v) * (W / 32767)
// |sum| <= 256 * 32767 * 128 < 2^31: exact in any order.
inline constexpr float kWeightMax = 32767.0f;
inline constexpr float kLeastWeight = 1e-30f;  // all q are 0 where W is below it
inline float weight_factor(float largest) { return largest < kLeastWeight ? 0.0f : kWeightMax / largest; }
// A NaN gives 0.
inline int32_t quantize_weight(float w, float factor) {
  const float q = w * factor;
  return static_cast<int32_t>(round_half_even(q > 0.0f ? q : 0.0f));
}

}  // namespace pagoda::kernels
