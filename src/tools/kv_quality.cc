#include "tools/kv_quality.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace pagoda::tools {
namespace {

constexpr size_t kLanes = 16;

// sum of e * (r - f), in 16 lanes.
double weighted_difference(const float* e, const float* r, const float* f, size_t n) {
  float lanes[kLanes] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += e[i + lane] * (r[i + lane] - f[i + lane]);
  }
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  for (size_t i = whole; i < n; ++i) sum += static_cast<double>(e[i] * (r[i] - f[i]));
  return sum;
}

// Of the means of kErrorRows consecutive values each, or of the values where there are no two such means.
double standard_error(std::span<const float> values) {
  const size_t group = values.size() >= 2 * QualityStats::kErrorRows ? QualityStats::kErrorRows : 1;
  std::vector<double> means;
  for (size_t begin = 0; begin + group <= values.size(); begin += group) {
    const std::span<const float> some = values.subspan(begin, group);
    means.push_back(std::accumulate(some.begin(), some.end(), 0.0) / static_cast<double>(group));
  }
  if (means.size() < 2) return 0;
  const auto n = static_cast<double>(means.size());
  const double mean = std::accumulate(means.begin(), means.end(), 0.0) / n;
  double squares = 0;
  for (const double m : means) squares += (m - mean) * (m - mean);
  return std::sqrt(squares / (n - 1) / n);
}

}  // namespace

void row_distances(const kernels::KernelTable& kernels, std::span<const engine::SampleResult> rows, TokenId next,
                   std::span<RowDistance> distances) {
  const std::span<const float> reference = rows[0].logits;
  const float top = reference[static_cast<size_t>(rows[0].greedy.value)];
  float e[kernels::kLogitsTile];
  double mass = 0;
  for (RowDistance& d : distances) d.kl = 0;
  for (size_t begin = 0; begin < reference.size(); begin += kernels::kLogitsTile) {
    const size_t n = std::min<size_t>(kernels::kLogitsTile, reference.size() - begin);
    const float tile_mass = kernels.exp_sums(reference.data() + begin, static_cast<int>(n), top, 1.0f, e).mass;
    if (tile_mass == 0) continue;
    mass += static_cast<double>(tile_mass);
    for (size_t i = 1; i < rows.size(); ++i)
      distances[i].kl += weighted_difference(e, reference.data() + begin, rows[i].logits.data() + begin, n);
  }
  const auto log_sum = [&](const engine::SampleResult& row) {
    return kernels.log_sum_exp(row.logits.data(), static_cast<int>(row.logits.size()));
  };
  const auto logit = [&](const engine::SampleResult& row) {
    return static_cast<double>(row.logits[static_cast<size_t>(next.value)]);
  };
  const double reference_sum = log_sum(rows[0]);
  const double reference_loss = reference_sum - logit(rows[0]);
  distances[0] = {.loss = reference_loss};
  for (size_t i = 1; i < rows.size(); ++i) {
    const double sum = log_sum(rows[i]);
    distances[i].kl = distances[i].kl / mass + (sum - reference_sum);
    distances[i].loss = sum - logit(rows[i]);
    distances[i].loss_change = distances[i].loss - reference_loss;
    distances[i].same_top = rows[i].greedy == rows[0].greedy;
  }
}

void QualityStats::add(const RowDistance& row) {
  loss_ += row.loss;
  n_same_top_ += row.same_top ? 1 : 0;
  kl_.push_back(static_cast<float>(row.kl));
  loss_change_.push_back(static_cast<float>(row.loss_change));
}

KvQuality QualityStats::result() const {
  CHECK(!kl_.empty());
  const auto n = static_cast<double>(kl_.size());
  const auto mean = [n](const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / n;
  };
  KvQuality out;
  out.n_rows = static_cast<int64_t>(kl_.size());
  out.ppl = std::exp(loss_ / n);
  const double change = mean(loss_change_);
  out.distance = {
      .delta_ppl = std::expm1(change), .mean_kl = mean(kl_), .same_top = static_cast<double>(n_same_top_) / n};
  out.delta_ppl_error = std::exp(change) * standard_error(loss_change_);
  out.mean_kl_error = standard_error(kl_);
  out.same_top_error = std::sqrt(out.distance.same_top * (1 - out.distance.same_top) / n);
  std::vector<float> sorted = kl_;
  const auto at = sorted.begin() + static_cast<ptrdiff_t>(std::ceil(0.999 * n)) - 1;
  std::nth_element(sorted.begin(), at, sorted.end());
  out.kl_999 = static_cast<double>(*at);
  return out;
}

}  // namespace pagoda::tools
