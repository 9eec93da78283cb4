#include "tools/kv_quality.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tools/kv_noise.h"

namespace pagoda::tools {
namespace {

const kernels::KernelTable& table() {
  kernels::set_float_mode();
  return kernels::kernel_table(kernels::best_isa());
}

engine::SampleResult result_of(const std::vector<float>& logits) {
  const auto top = std::max_element(logits.begin(), logits.end());
  return {.row = 0, .greedy = TokenId(static_cast<int32_t>(top - logits.begin())), .logits = logits};
}

std::vector<RowDistance> distances_of(const std::vector<std::vector<float>>& logits, TokenId next) {
  std::vector<engine::SampleResult> rows;
  for (const auto& row : logits) rows.push_back(result_of(row));
  std::vector<RowDistance> out(rows.size());
  row_distances(table(), rows, next, out);
  return out;
}

// The definition, in double.
double kl_of(const std::vector<float>& reference, const std::vector<float>& format) {
  const auto probabilities = [](const std::vector<float>& logits) {
    std::vector<double> p;
    double sum = 0;
    for (const float x : logits) sum += p.emplace_back(std::exp(static_cast<double>(x)));
    for (double& value : p) value /= sum;
    return p;
  };
  const auto p = probabilities(reference), q = probabilities(format);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += p[i] * std::log(p[i] / q[i]);
  return kl;
}

TEST(KvQualityTest, TwoTokensByHand) {
  // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2), losses of token 1 ln 4 and ln 2.
  const auto d = distances_of({{std::log(3.0f), 0.0f}, {0.5f, 0.5f}, {0.0f, 0.5f}}, TokenId(1));
  EXPECT_NEAR(d[1].kl, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(d[0].loss, std::log(4.0), 1e-6);
  EXPECT_NEAR(d[1].loss, std::log(2.0), 1e-6);
  EXPECT_NEAR(d[1].loss_change, -std::log(2.0), 1e-6);
  EXPECT_TRUE(d[1].same_top);   // a tie is the lowest id
  EXPECT_FALSE(d[2].same_top);  // token 1 before token 0
  EXPECT_EQ(d[0].kl, 0);
}

TEST(KvQualityTest, TheSameLogitsAreNoDistance) {
  std::vector<float> row(2500);
  for (size_t i = 0; i < row.size(); ++i) row[i] = 8 * std::sin(static_cast<float>(i));
  const auto d = distances_of({row, row}, TokenId(17));
  EXPECT_EQ(d[1].kl, 0);
  EXPECT_EQ(d[1].loss_change, 0);
}

// Several tiles, the last one with an odd end; small and large differences, and logits whose exponential is 0.
TEST(KvQualityTest, LargeVocabulariesAgreeWithTheDefinition) {
  std::vector<float> reference(3001), near(3001), far(3001);
  for (size_t i = 0; i < reference.size(); ++i) {
    const auto x = static_cast<float>(i);
    reference[i] = 9 * std::sin(x * 0.37f);
    near[i] = reference[i] + 0.02f * std::cos(x * 1.7f);
    far[i] = 9 * std::sin(x * 0.37f + 0.5f);
  }
  reference[5] = near[5] = -200;
  far[5] = -190;
  const auto d = distances_of({reference, near, far}, TokenId(3000));
  EXPECT_NEAR(d[1].kl, kl_of(reference, near), 2e-7);
  EXPECT_NEAR(d[2].kl, kl_of(reference, far), 2e-6);
}

TEST(KvQualityTest, MeansErrorsAndTail) {
  QualityStats stats;
  for (int i = 0; i < 2000; ++i) {
    stats.add({.kl = i < 3 ? 1.0 : 0.001 * (i % 2), .loss_change = 0.01, .loss = 2.0, .same_top = i % 4 != 0});
  }
  const KvQuality q = stats.result();
  EXPECT_EQ(q.n_rows, 2000);
  EXPECT_NEAR(q.ppl, std::exp(2.0), 1e-12);
  EXPECT_NEAR(q.distance.delta_ppl, std::expm1(0.01), 1e-8);
  EXPECT_EQ(q.delta_ppl_error, 0);
  EXPECT_NEAR(q.distance.mean_kl, (3 + 0.001 * 999) / 2000, 1e-8);
  EXPECT_EQ(q.distance.same_top, 0.75);
  EXPECT_EQ(q.kl_999, 1);  // three rows in 2,000 are more than one in 1,000
}

TEST(KvQualityTest, ErrorsAreOfMeansOfNeighbours) {
  // 8 stretches of 128 rows, of which every second is 2 and the others 0: mean 1, sample deviation sqrt(8/7), error sqrt(8/7/8).
  QualityStats stats;
  for (int i = 0; i < 8 * QualityStats::kErrorRows; ++i)
    stats.add({.kl = i / QualityStats::kErrorRows % 2 == 0 ? 0.0 : 2.0});
  EXPECT_NEAR(stats.result().mean_kl_error, std::sqrt(1.0 / 7), 1e-9);
}

TEST(KvQualityTest, NoiseIsTheNormWithOtherRoundings) {
  constexpr int kCols = 640;
  std::vector<float> x(2 * kCols), weight(kCols), ours(2 * kCols), other(2 * kCols);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * 3;
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = 1 + 0.1f * std::cos(static_cast<float>(i));
  table().rms_norm(x.data(), kCols, weight.data(), 1e-6f, kCols, {0, 2}, ours.data(), kCols);
  noisy(table()).rms_norm(x.data(), kCols, weight.data(), 1e-6f, kCols, {0, 2}, other.data(), kCols);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(ours[i], other[i], 1e-6f * std::fabs(ours[i])) << i;
}

}  // namespace
}  // namespace pagoda::tools
