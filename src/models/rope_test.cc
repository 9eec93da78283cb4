#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pagoda::models {
namespace {

using weights::RopeConfig;
using weights::RopeScaling;

RopeConfig config_of(RopeScaling scaling) {
  RopeConfig config;
  config.dim = 64;
  config.freq_base = 10000;
  config.local_freq_base = 100;
  config.scaling = scaling;
  config.factor = 4;
  config.original_context = 128;
  return config;
}

// The angle of each pair at position 1, from cos and sin.
std::vector<double> frequencies(const RopeConfig& config, RopeTable::Layers layers = RopeTable::Layers::kGlobal) {
  const RopeTable table(config, layers);
  std::vector<float> out(static_cast<size_t>(config.dim));
  const int32_t one = 1;
  table.fill({&one, 1}, out.data());
  std::vector<double> angles;
  for (size_t i = 0; i < out.size(); i += 2) angles.push_back(std::atan2(out[i + 1], out[i]));
  return angles;
}

TEST(RopeTest, AnglesGrowWithThePosition) {
  const RopeTable table(config_of(RopeScaling::kNone), RopeTable::Layers::kGlobal);
  EXPECT_EQ(table.dim(), 64);
  const std::vector<int32_t> positions{0, 3, 70000};
  std::vector<float> out(3 * 64);
  table.fill(positions, out.data());
  for (size_t row = 0; row < 3; ++row) {
    for (size_t pair = 0; pair < 32; ++pair) {
      const double angle = positions[row] * std::pow(10000.0, -static_cast<double>(pair) / 32);
      EXPECT_FLOAT_EQ(out[row * 64 + 2 * pair], static_cast<float>(std::cos(angle)));
      EXPECT_FLOAT_EQ(out[row * 64 + 2 * pair + 1], static_cast<float>(std::sin(angle)));
    }
  }
}

TEST(RopeTest, LinearAndLlama3Divide) {
  const std::vector<double> plain = frequencies(config_of(RopeScaling::kNone));
  const std::vector<double> linear = frequencies(config_of(RopeScaling::kLinear));
  RopeConfig llama3 = config_of(RopeScaling::kLlama3);
  for (int i = 0; i < 32; ++i) llama3.freq_factors.push_back(1.0f + static_cast<float>(i));
  const std::vector<double> divided = frequencies(llama3);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(linear[i], plain[i] / 4, 1e-7);
    EXPECT_NEAR(divided[i], plain[i] / (1 + static_cast<double>(i)), 1e-7);
  }
}

TEST(RopeTest, YarnKeepsFastPairsAndDividesSlowOnes) {
  RopeConfig yarn = config_of(RopeScaling::kYarn);
  const std::vector<double> plain = frequencies(config_of(RopeScaling::kNone));
  const std::vector<double> scaled = frequencies(yarn);
  EXPECT_NEAR(scaled.front(), plain.front(), 1e-6);
  EXPECT_NEAR(scaled.back(), plain.back() / 4, 1e-9);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_LE(scaled[i], plain[i] + 1e-6);
    EXPECT_GE(scaled[i], plain[i] / 4 - 1e-6);
  }
  yarn.magnitude = 1.5;
  const RopeTable table(yarn, RopeTable::Layers::kGlobal);
  std::vector<float> out(64);
  const int32_t zero = 0;
  table.fill({&zero, 1}, out.data());
  EXPECT_FLOAT_EQ(out[0], 1.5f);
}

TEST(RopeTest, LocalLayersHaveTheirBaseAndNoScaling) {
  const std::vector<double> local = frequencies(config_of(RopeScaling::kLinear), RopeTable::Layers::kLocal);
  for (size_t i = 0; i < local.size(); ++i) EXPECT_NEAR(local[i], std::pow(100.0, -static_cast<double>(i) / 32), 1e-6);
}

}  // namespace
}  // namespace pagoda::models
