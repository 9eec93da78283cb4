// f16 and bf16 as raw bits, to f32 and back. Exact: widening loses nothing, narrowing rounds to nearest even and keeps
// subnormals; a NaN stays a NaN and becomes quiet, as the hardware's conversions have it. Independent of FTZ and DAZ.
// Threads: any; no state.
#pragma once

#include <bit>
#include <cstdint>

namespace pagoda::tensor {

constexpr float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 31U;
  const uint32_t fraction = bits & 0x3FFU;
  if (exponent == 31) {
    const uint32_t quiet = fraction != 0 ? 0x400000U : 0;
    return std::bit_cast<float>(sign | 0x7F800000U | quiet | (fraction << 13));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;  // a normal f32, or zero
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

constexpr uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7C00U);  // 65536 and up
  if (magnitude >= 0x38800000U) {  // 2^-14 and up: normal; a carry may reach infinity
    const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return static_cast<uint16_t>(sign);  // below 2^-25: zero
  const uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
  const uint32_t shift = 126 - exponent;  // 14..24; the result counts units of 2^-24
  const uint32_t half = 1U << (shift - 1);
  const uint32_t rest = significand & ((1U << shift) - 1);
  uint32_t result = significand >> shift;
  if (rest > half || (rest == half && (result & 1U) != 0)) ++result;
  return static_cast<uint16_t>(sign | result);
}

constexpr float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace pagoda::tensor
