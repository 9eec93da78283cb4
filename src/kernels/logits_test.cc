// Rows of logits: each instruction set against ref, bit for bit; ref against double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"
#include "kernels/test_util.h"

namespace pagoda::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<LogitTile> tiles_of(const KernelTable& table, const std::vector<float>& x) {
  std::vector<LogitTile> tiles((x.size() + kLogitsTile - 1) / kLogitsTile);
  table.logit_tiles(x.data(), static_cast<int>(x.size()), tiles.data());
  return tiles;
}

// Of the tiles, as who has only them would find it.
int argmax_of(const std::vector<LogitTile>& tiles) {
  LogitTile best = tiles[0];
  for (const LogitTile& tile : tiles) best = tile.max > best.max ? tile : best;
  return best.index;
}

class LogitsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_float_mode(); }
  int n() const { return GetParam(); }
  std::vector<float> logits(uint64_t seed) const { return random_floats(seed, static_cast<size_t>(n()), 8.0f); }
};

TEST_P(LogitsTest, Softcap) {
  std::vector<float> want = logits(1);
  kernel_table(Isa::kRef).softcap(want.data(), n(), 5.0f);
  for (const Isa isa : supported_isas()) {
    std::vector<float> got = logits(1);
    kernel_table(isa).softcap(got.data(), n(), 5.0f);
    EXPECT_TRUE(same_bits(got, want)) << to_string(isa);
  }
}

TEST_P(LogitsTest, ArgmaxAndLogSumExp) {
  std::vector<float> x = logits(2);
  x[static_cast<size_t>(n() / 2)] = x[static_cast<size_t>(n() - 1)] = 40.0f;  // a tie
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(kernel_table(isa).argmax(x.data(), n()), n() / 2) << to_string(isa);
    EXPECT_EQ(kernel_table(isa).log_sum_exp(x.data(), n()), kernel_table(Isa::kRef).log_sum_exp(x.data(), n()));
  }
  double sum = 0.0;
  for (const float v : x) sum += std::exp(double{v} - 40.0);
  EXPECT_NEAR(kernel_table(Isa::kRef).log_sum_exp(x.data(), n()), 40.0 + std::log(sum), 1e-6);
}

TEST_P(LogitsTest, TilesHoldEachTilesFirstLargest) {
  std::vector<float> x = logits(3);
  for (float& value : x) value = std::floor(value);  // many ties
  if (n() > 20) x[20] = kNaN;
  for (const Isa isa : supported_isas()) {
    const std::vector<LogitTile> tiles = tiles_of(kernel_table(isa), x);
    for (size_t t = 0; t < tiles.size(); ++t) {
      const size_t begin = t * kLogitsTile, end = std::min(x.size(), begin + kLogitsTile);
      size_t best = begin;
      for (size_t i = begin; i < end; ++i) best = x[i] > x[best] ? i : best;
      EXPECT_EQ(tiles[t].index, static_cast<int>(best)) << to_string(isa) << ", tile " << t;
      EXPECT_EQ(tiles[t].max, x[best]);
    }
    EXPECT_EQ(argmax_of(tiles), kernel_table(isa).argmax(x.data(), n()));
  }
}

TEST_P(LogitsTest, ExpSums) {
  std::vector<float> x = logits(4);
  x[static_cast<size_t>(n() / 2)] = -kInf;
  if (n() > 20) x[20] = kNaN;
  const float max = tiles_of(kernel_table(Isa::kRef), x)[0].max + 1.0f;
  for (const float scale : {1.0f, 0.3f, 40.0f, 1e30f}) {
    std::vector<float> want(x.size());
    const ExpSums sums = kernel_table(Isa::kRef).exp_sums(x.data(), n(), max, scale, want.data());
    double mass = 0, exponent = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = (double{x[i]} - double{max}) * double{scale};
      const double weight = e > -87.3 ? std::exp(e) : 0.0;  // so 0 for NaN
      EXPECT_NEAR(want[i], weight, 1e-5 * weight + 1e-37) << i;
      mass += weight;
      if (weight > 0) exponent += weight * e;
    }
    EXPECT_NEAR(sums.mass, mass, 1e-5 * mass + 1e-37);
    EXPECT_NEAR(sums.exponent, exponent, -1e-5 * exponent + 1e-35);
    for (const Isa isa : supported_isas()) {
      std::vector<float> got(x.size());
      const ExpSums same = kernel_table(isa).exp_sums(x.data(), n(), max, scale, got.data());
      EXPECT_TRUE(same_bits(got, want)) << to_string(isa) << ", scale " << scale;
      EXPECT_TRUE(same_bits({same.mass, same.exponent}, {sums.mass, sums.exponent})) << to_string(isa);
    }
  }
}

TEST_P(LogitsTest, FindBetween) {
  std::vector<float> x = logits(5);
  if (n() > 20) x[20] = kNaN;
  x[0] = 3.0f;
  x[static_cast<size_t>(n() - 1)] = -3.0f;
  const std::pair<float, float> cases[] = {{-3.0f, 3.0f}, {3.0f, kInf}, {-kInf, kInf}, {2.0f, 2.0f}};
  for (const auto& [low, high] : cases) {
    std::vector<int32_t> want;
    for (int i = 0; i < n(); ++i) {
      if (x[static_cast<size_t>(i)] >= low && x[static_cast<size_t>(i)] < high) want.push_back(7000 + i);
    }
    for (const Isa isa : supported_isas()) {
      std::vector<int32_t> got(x.size());
      got.resize(static_cast<size_t>(kernel_table(isa).find_between(x.data(), n(), low, high, 7000, got.data())));
      EXPECT_EQ(got, want) << to_string(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Logits, LogitsTest,
                         testing::Values(1, 15, 16, 17, 31, 64, 79, 100, 576, 1024, 1025, 2048, 3001));

TEST(LogitsEdgeTest, ArgmaxTakesTheFirstOfEquals) {
  set_float_mode();
  for (const Isa isa : supported_isas()) {
    const KernelTable& table = kernel_table(isa);
    for (int n = 1; n < 140; ++n) {
      std::vector<float> x(static_cast<size_t>(n), -kInf);
      EXPECT_EQ(table.argmax(x.data(), n), 0);
      for (int first = n - 1; first >= 0; --first) {
        x[static_cast<size_t>(first)] = -3.0f;
        ASSERT_EQ(table.argmax(x.data(), n), first) << to_string(isa) << " of " << n;
      }
    }
  }
}

TEST(LogitsEdgeTest, TilesOfWhatIsNotANumber) {
  set_float_mode();
  std::vector<float> x(2 * kLogitsTile + 3, -kInf);  // a tile of nothing, one of NaN and both zeros, one of NaN alone
  std::fill(x.begin() + kLogitsTile, x.begin() + 2 * kLogitsTile, kNaN);
  std::fill(x.begin() + 2 * kLogitsTile, x.end(), kNaN);
  x[kLogitsTile + 30] = -0.0f;
  x[kLogitsTile + 31] = 0.0f;
  for (const Isa isa : supported_isas()) {
    const std::vector<LogitTile> tiles = tiles_of(kernel_table(isa), x);
    const std::vector<float> got = {tiles[0].max, tiles[1].max, tiles[2].max};
    EXPECT_TRUE(same_bits(got, {-kInf, -0.0f, -kInf})) << to_string(isa);
    EXPECT_EQ(tiles[0].index, 0);
    EXPECT_EQ(tiles[1].index, kLogitsTile + 30);
    EXPECT_EQ(tiles[2].index, 2 * kLogitsTile);
    EXPECT_EQ(kernel_table(isa).argmax(x.data(), static_cast<int>(x.size())), kLogitsTile + 30);
  }
}

TEST(LogitsEdgeTest, LogSumExpOfMaskedLogits) {
  set_float_mode();
  for (const Isa isa : supported_isas()) {
    std::vector<float> x(3000, -kInf);
    EXPECT_EQ(kernel_table(isa).log_sum_exp(x.data(), 3000), -kInf);
    x[2500] = 2.0f;  // the only one: its own logarithm
    EXPECT_EQ(kernel_table(isa).log_sum_exp(x.data(), 3000), 2.0);
  }
}

}  // namespace
}  // namespace pagoda::kernels
