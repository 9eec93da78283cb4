#include "tensor/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace pagoda::tensor {
namespace {

// What the bits mean, by arithmetic in double instead of bit moves.
double meaning(uint32_t sign, uint32_t exponent, uint32_t fraction, int fraction_bits, int bias) {
  const double unit = std::ldexp(1.0, -fraction_bits);
  const double value = exponent == 0 ? std::ldexp(fraction * unit, 1 - bias)
                                     : std::ldexp(1.0 + fraction * unit, static_cast<int>(exponent) - bias);
  return sign != 0 ? -value : value;
}
double f16_meaning(uint16_t bits) { return meaning(bits >> 15, (bits >> 10) & 31, bits & 1023, 10, 15); }
double bf16_meaning(uint16_t bits) { return meaning(bits >> 15, (bits >> 7) & 255, bits & 127, 7, 127); }

TEST(Float16, EveryF16WidensToItsMeaningAndBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float wide = f16_to_f32(bits);
    if ((bits & 0x7C00) == 0x7C00) {
      EXPECT_EQ(std::isnan(wide), (bits & 0x3FF) != 0);
      EXPECT_EQ(std::isinf(wide), (bits & 0x3FF) == 0);
      EXPECT_EQ(std::signbit(wide), (bits & 0x8000) != 0);
      EXPECT_EQ(f32_to_f16(wide), bits | (std::isnan(wide) ? 0x200 : 0));
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), f16_meaning(bits)) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0);
    ASSERT_EQ(f32_to_f16(wide), bits);
  }
}

TEST(Float16, EveryBf16WidensToItsMeaningAndBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float wide = bf16_to_f32(bits);
    if ((bits & 0x7F80) == 0x7F80) {
      EXPECT_EQ(std::isnan(wide), (bits & 0x7F) != 0);
      EXPECT_EQ(f32_to_bf16(wide), bits | (std::isnan(wide) ? 0x40 : 0));
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), bf16_meaning(bits)) << bits;
    ASSERT_EQ(f32_to_bf16(wide), bits);
  }
}

// Around the midpoint of each neighbouring pair: just below goes down, just above goes up, the midpoint to the even
// one.
template <typename Narrow, typename Meaning>
void check_rounding(uint16_t last_finite, Narrow narrow, Meaning meaning_of) {
  for (uint16_t low = 0; low < last_finite; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const auto middle = static_cast<float>((meaning_of(low) + meaning_of(high)) / 2);  // exact: one bit more
    const uint16_t even = (low & 1) == 0 ? low : high;
    for (const uint16_t sign : {0, 0x8000}) {
      const float s = sign != 0 ? -1.0F : 1.0F;
      ASSERT_EQ(narrow(s * middle), sign | even) << low;
      ASSERT_EQ(narrow(s * std::nextafter(middle, 0.0F)), sign | low) << low;
      ASSERT_EQ(narrow(s * std::nextafter(middle, INFINITY)), sign | high) << low;
    }
  }
}

TEST(Float16, NarrowingRoundsToNearestEven) {
  check_rounding(0x7BFF, [](float x) { return f32_to_f16(x); }, f16_meaning);
  check_rounding(0x7F7F, [](float x) { return f32_to_bf16(x); }, bf16_meaning);
}

TEST(Float16, NarrowingOverflowsAtTheLastMidpoint) {
  EXPECT_EQ(f32_to_f16(65519.996F), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(f32_to_f16(-1e30F), 0xFC00);
  EXPECT_EQ(f32_to_f16(1e-30F), 0);
  EXPECT_EQ(f32_to_f16(-1e-42F), 0x8000);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7F7F8000U)), 0x7F80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7F7F7FFFU)), 0x7F7F);
}

TEST(Float16, SignallingNansBecomeQuiet) {
  EXPECT_EQ(f32_to_f16(std::bit_cast<float>(0x7F800001U)), 0x7E00);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0xFF800001U)), 0xFFC0);
  EXPECT_EQ(std::bit_cast<uint32_t>(f16_to_f32(0x7C01)), 0x7FC02000U);
}

}  // namespace
}  // namespace pagoda::tensor
