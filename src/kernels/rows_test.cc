// Rows of activations: each instruction set against ref, bit for bit; ref against double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/test_util.h"

namespace pagoda::kernels {
namespace {

constexpr int kRows = 5;
const Range kSome = {1, 4};  // rows outside the range must stay as they are

class RowsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_float_mode(); }
  int n() const { return GetParam(); }
  int ld() const { return n() + 3; }
  std::vector<float> rows(uint64_t seed) const { return random_floats(seed, static_cast<size_t>(kRows * ld()), 3.0f); }

  // run(table, data) on every table, from the same data.
  template <typename Run>
  void expect_same(const std::vector<float>& data, Run run) const {
    std::vector<float> want = data;
    run(kernel_table(Isa::kRef), want);
    for (const Isa isa : supported_isas()) {
      std::vector<float> got = data;
      run(kernel_table(isa), got);
      EXPECT_TRUE(same_bits(got, want)) << to_string(isa) << ", " << n() << " columns";
    }
  }
};

TEST_P(RowsTest, RmsNorm) {
  const std::vector<float> x = rows(1);
  const std::vector<float> weight = random_floats(2, static_cast<size_t>(n()));
  expect_same(rows(3), [&](const KernelTable& table, std::vector<float>& out) {
    table.rms_norm(x.data(), ld(), weight.data(), 1e-5f, n(), kSome, out.data(), ld());
  });
  expect_same(x, [&](const KernelTable& table, std::vector<float>& out) {
    table.rms_norm(out.data(), ld(), weight.data(), 1e-5f, n(), kSome, out.data(), ld());
  });
  std::vector<float> out = x;
  kernel_table(Isa::kRef).rms_norm(x.data(), ld(), weight.data(), 1e-5f, n(), kSome, out.data(), ld());
  for (int r = kSome.begin; r < kSome.end; ++r) {
    double sum = 0.0;
    for (int i = 0; i < n(); ++i) sum += double{x[r * ld() + i]} * x[r * ld() + i];
    for (int i = 0; i < n(); ++i) {
      const double want = x[r * ld() + i] / std::sqrt(sum / n() + 1e-5) * weight[i];
      EXPECT_NEAR(out[r * ld() + i], want, 1e-6 * std::fabs(want) + 1e-12);
    }
  }
}

TEST_P(RowsTest, AddBiasScale) {
  const std::vector<float> y = rows(4);
  expect_same(rows(5), [&](const KernelTable& table, std::vector<float>& x) {
    table.add(x.data(), ld(), y.data(), ld(), n(), kSome);
    table.add_bias(x.data(), ld(), y.data(), n(), kSome);
    table.scale(x.data(), ld(), 0.77f, n(), kSome);
  });
  std::vector<float> x = rows(5);
  const std::vector<float> before = x;
  kernel_table(Isa::kRef).add(x.data(), ld(), y.data(), ld(), n(), kSome);
  EXPECT_EQ(x[ld()], before[ld()] + y[ld()]);
  EXPECT_EQ(x[0], before[0]);
  EXPECT_EQ(x[4 * ld()], before[4 * ld()]);
}

TEST_P(RowsTest, Gated) {
  const std::vector<float> gate = rows(6);
  const std::vector<float> up = rows(7);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    const int a = static_cast<int>(activation);
    expect_same(rows(8), [&](const KernelTable& table, std::vector<float>& out) {
      table.gated[a](gate.data(), up.data(), ld(), n(), kSome, out.data(), ld());
    });
    expect_same(gate, [&](const KernelTable& table, std::vector<float>& out) {
      table.gated[a](out.data(), up.data(), ld(), n(), kSome, out.data(), ld());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Columns, RowsTest, testing::Values(1, 15, 16, 17, 31, 64, 100, 576, 1024, 1025, 3001));

struct RopeCase {
  int head_dim;
  int rope_dim;
};
class RopeTest : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeTest, BothStyles) {
  set_float_mode();
  constexpr int kHeads = 3;
  const auto [head_dim, rope_dim] = GetParam();
  const int ld = kHeads * head_dim + 5;
  const std::vector<int32_t> position = {4, 0, 17, 9, 3};
  std::vector<float> table(static_cast<size_t>(20 * rope_dim));
  for (int p = 0; p < 20; ++p) {
    for (int i = 0; i < rope_dim / 2; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / rope_dim);
      table[p * rope_dim + 2 * i] = static_cast<float>(std::cos(angle));
      table[p * rope_dim + 2 * i + 1] = static_cast<float>(std::sin(angle));
    }
  }
  const std::vector<float> x = random_floats(11, static_cast<size_t>(kRows * ld));
  for (const RopeStyle style : {RopeStyle::kAdjacent, RopeStyle::kHalves}) {
    const int s = static_cast<int>(style);
    std::vector<float> want = x;
    kernel_table(Isa::kRef).rope[s](want.data(), ld, kHeads, head_dim, rope_dim, table.data(), position.data(), kSome);
    for (const Isa isa : supported_isas()) {
      std::vector<float> got = x;
      kernel_table(isa).rope[s](got.data(), ld, kHeads, head_dim, rope_dim, table.data(), position.data(), kSome);
      EXPECT_TRUE(same_bits(got, want)) << to_string(isa);
    }
    // The last pair of head 1 of row 2.
    const int i = rope_dim / 2 - 1;
    const int a = 2 * ld + head_dim + (style == RopeStyle::kAdjacent ? 2 * i : i);
    const int b = 2 * ld + head_dim + (style == RopeStyle::kAdjacent ? 2 * i + 1 : i + rope_dim / 2);
    const double c = table[17 * rope_dim + 2 * i];
    const double sin = table[17 * rope_dim + 2 * i + 1];
    EXPECT_NEAR(want[a], x[a] * c - x[b] * sin, 1e-6);
    EXPECT_NEAR(want[b], x[b] * c + x[a] * sin, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Dims, RopeTest,
                         testing::Values(RopeCase{16, 16}, RopeCase{48, 48}, RopeCase{64, 64}, RopeCase{80, 80},
                                         RopeCase{80, 20}, RopeCase{128, 128}, RopeCase{256, 256}, RopeCase{96, 6}));

}  // namespace
}  // namespace pagoda::kernels
