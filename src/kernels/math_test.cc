#include "kernels/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "kernels/kernels.h"

namespace pagoda::kernels {
namespace {

int64_t ordered(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits < 0 ? -static_cast<int64_t>(bits & 0x7FFFFFFF) : bits;
}

// Distance in units of the last place from the double result, rounded to f32.
int64_t ulps(float got, double want) { return std::llabs(ordered(got) - ordered(static_cast<float>(want))); }

// Every 977th float of [low, high], both signs where the range has them.
template <typename F>
void for_floats(float low, float high, F check) {
  for (int64_t i = ordered(low); i <= ordered(high); i += 977) {
    const auto bits = static_cast<uint32_t>(i < 0 ? (-i | 0x80000000LL) : i);
    check(std::bit_cast<float>(bits));
  }
}

TEST(MathTest, ExpIsWithinOneUlp) {
  set_float_mode();
  int64_t worst = 0;
  const auto check = [&](float x) { worst = std::max(worst, ulps(exp_f32(x), std::exp(static_cast<double>(x)))); };
  for_floats(-87.33f, -1e-6f, check);
  for_floats(1e-6f, 88.72f, check);
  EXPECT_LE(worst, 1);
}

TEST(MathTest, ExpAtItsEdges) {
  set_float_mode();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(std::bit_cast<uint32_t>(exp_f32(-kInf)), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(exp_f32(-1e30f)), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(exp_f32(-88.0f)), 0u);
  EXPECT_GT(exp_f32(kExpLowest), 0.0f);
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_EQ(exp_f32(89.0f), kInf);
  EXPECT_LT(exp_f32(kExpHighest), kInf);
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST(MathTest, TanhIsWithinTwoUlp) {
  set_float_mode();
  int64_t worst = 0;
  const auto check = [&](float x) { worst = std::max(worst, ulps(tanh_f32(x), std::tanh(static_cast<double>(x)))); };
  for_floats(1e-12f, 20.0f, check);
  for_floats(-20.0f, -1e-12f, check);
  EXPECT_LE(worst, 2);
  EXPECT_EQ(tanh_f32(0.0f), 0.0f);
  EXPECT_EQ(tanh_f32(1000.0f), 1.0f);
  EXPECT_EQ(tanh_f32(-std::numeric_limits<float>::infinity()), -1.0f);
}

TEST(MathTest, ActivationsAreCloseToDouble) {
  set_float_mode();
  for_floats(1e-3f, 60.0f, [&](float magnitude) {
    for (const float x : {magnitude, -magnitude}) {
      const double d = x;
      const double silu = d / (1.0 + std::exp(-d));
      EXPECT_NEAR(silu_f32(x), silu, 4e-7 * std::fabs(silu) + 1e-37) << x;
      const double gelu = 0.5 * d * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (d + 0.044715 * d * d * d)));
      EXPECT_NEAR(gelu_tanh_f32(x), gelu, 4e-7 * std::fabs(d) + 1e-37) << x;
    }
  });
}

TEST(MathTest, RoundsHalfToEven) {
  EXPECT_EQ(round_half_even(0.5f), 0.0f);
  EXPECT_EQ(round_half_even(1.5f), 2.0f);
  EXPECT_EQ(round_half_even(2.5f), 2.0f);
  EXPECT_EQ(round_half_even(-2.5f), -2.0f);
  EXPECT_EQ(round_half_even(-126.5f), -126.0f);
}

TEST(MathTest, LogIsCloseToLibm) {
  for (double x = 1e-300; x < 1e300; x *= 1.0371) {
    EXPECT_NEAR(log_f64(x), std::log(x), 4e-16 * std::fabs(std::log(x)) + 1e-16) << x;
  }
  EXPECT_EQ(log_f64(1.0), 0.0);
}

// The polynomials through each table: softcap is tanh, gated is exp and tanh.
TEST(MathTest, EveryIsaGivesTheSameBits) {
  set_float_mode();
  std::vector<float> x;
  const auto collect = [&](float v) { x.insert(x.end(), {v, -v}); };
  for (int64_t i = ordered(1e-30f); i <= ordered(200.0f); i += 40961) {
    collect(std::bit_cast<float>(static_cast<uint32_t>(i)));
  }
  for (const float v : {0.0f, kExpLowest, kExpHighest, kTanhSmall, 1e38f, std::numeric_limits<float>::infinity()}) {
    collect(v);
  }
  const int n = static_cast<int>(x.size());
  const std::vector<float> ones(x.size(), 1.0f);
  for (const Isa isa : supported_isas()) {
    const KernelTable& table = kernel_table(isa);
    std::vector<float> silu(x.size());
    std::vector<float> gelu(x.size());
    std::vector<float> capped = x;
    table.gated[static_cast<int>(Activation::kSilu)](x.data(), ones.data(), n, n, {0, 1}, silu.data(), n);
    table.gated[static_cast<int>(Activation::kGeluTanh)](x.data(), ones.data(), n, n, {0, 1}, gelu.data(), n);
    table.softcap(capped.data(), n, 30.0f);
    for (int i = 0; i < n; ++i) {
      const auto same = [&](float got, float want) {
        return std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want) || (std::isnan(got) && std::isnan(want));
      };
      ASSERT_TRUE(same(silu[i], silu_f32(x[i]))) << to_string(isa) << " silu " << x[i];
      ASSERT_TRUE(same(gelu[i], gelu_tanh_f32(x[i]))) << to_string(isa) << " gelu " << x[i];
      ASSERT_TRUE(same(capped[i], softcap_f32(x[i], 30.0f))) << to_string(isa) << " softcap " << x[i];
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels
