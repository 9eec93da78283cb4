// exp, tanh and log of f32 and the activations over them: the definition, one scalar at a time. generic/math.h does the
// same operations in the same order over 16 lanes, so every instruction set gives the same bits; libm's float functions
// are never used.
// Fused: what is written fma(); nothing else.   Accuracy (math_test.cc): exp 1 ulp, tanh 2 ulp.
// Requires: round to nearest even, FTZ and DAZ (set_float_mode).
// Coefficients: weighted minimax fits of our own; the reduction is Cody and Waite's, rounding by the 1.5 * 2^23 trick.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace pagoda::kernels {

// exp(x) = 2^n * e^r, n = round(x / ln 2), r = x - n ln 2;  e^r = 1 + r + r^2 * P(r).
inline constexpr float kRoundMagic = 0x1.8p23f;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e430p-1f;
inline constexpr float kLn2Low = -0x1.05c610p-29f;
inline constexpr float kExp2 = 0x1.fffffcp-2f;
inline constexpr float kExp3 = 0x1.55549p-3f;
inline constexpr float kExp4 = 0x1.5558f4p-5f;
inline constexpr float kExp5 = 0x1.123a6cp-7f;
inline constexpr float kExp6 = 0x1.6a2352p-10f;
inline constexpr float kExpLowest = -87.3365f;  // below it the result is exactly 0 (it would be subnormal)
inline constexpr float kExpHighest = 88.7228f;  // above it the result is infinity

// tanh(x) = x + x * x^2 * Q(x^2) below the limit, sign(x) * (1 - 2 / (exp(2 |x|) + 1)) from it on.
inline constexpr float kTanhSmall = 0.625f;
inline constexpr float kTanh3 = -0x1.555534p-2f;
inline constexpr float kTanh5 = 0x1.110768p-3f;
inline constexpr float kTanh7 = -0x1.b84448p-5f;
inline constexpr float kTanh9 = 0x1.5256d4p-6f;
inline constexpr float kTanh11 = -0x1.76ac0ap-8f;

// gelu(x) = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kSqrt2OverPi = 0x1.988454p-1f;

// Ties to even. Requires |x| < 2^22.
inline float round_half_even(float x) { return (x + kRoundMagic) - kRoundMagic; }

inline float exp_f32(float x) {
  if (x < kExpLowest) return 0.0f;
  if (x > kExpHighest) return std::numeric_limits<float>::infinity();
  const float shifted = std::fma(x, kLog2E, kRoundMagic);
  const float n = shifted - kRoundMagic;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = std::fma(kExp6, r, kExp5);
  p = std::fma(p, r, kExp4);
  p = std::fma(p, r, kExp3);
  p = std::fma(p, r, kExp2);
  p = std::fma(p, r * r, r) + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23));
}

inline float tanh_f32(float x) {
  const float magnitude = std::fabs(x);
  if (magnitude < kTanhSmall) {
    const float z = x * x;
    float q = std::fma(kTanh11, z, kTanh9);
    q = std::fma(q, z, kTanh7);
    q = std::fma(q, z, kTanh5);
    q = std::fma(q, z, kTanh3);
    return std::fma(x * z, q, x);
  }
  const float result = 1.0f - 2.0f / (exp_f32(magnitude + magnitude) + 1.0f);
  return std::copysign(result, x);
}

inline float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }

inline float gelu_tanh_f32(float x) {
  const float cubic = kGeluCubic * (x * (x * x));
  return (0.5f * x) * (1.0f + tanh_f32(kSqrt2OverPi * (x + cubic)));
}

inline float softcap_f32(float x, float cap) { return cap * tanh_f32(x / cap); }

// Rope: (a, b) -> (a cos - b sin, b cos + a sin), every product rounded. cos_sin: {cos, sin}.
inline void rotate_pair(float* a, float* b, const float* cos_sin) {
  const float old_a = *a;
  const float old_b = *b;
  *a = old_a * cos_sin[0] - old_b * cos_sin[1];
  *b = old_b * cos_sin[0] + old_a * cos_sin[1];
}

// ln(x) of a positive normal double, in plain double operations (libm's differ between versions). Within 2 ulp.
// x = 2^e * m, m in [sqrt(1/2), sqrt(2));  ln(m) = 2 atanh(f), f = (m - 1) / (m + 1).
double log_f64(double x);

}  // namespace pagoda::kernels
