#include "sched/step_time.h"

#include <algorithm>
#include <cmath>

namespace pagoda::sched {
namespace {

// So that all costs are of one size.
constexpr double kDecodeRows = 16, kPrefillRows = 128, kDecodeTokens = 16 * 1024, kPrefillTokens = 128 * 1024;
constexpr double kKeepDecodes = 0.98, kKeepPrefills = 0.93;
constexpr double kInertia = 1e-3;  // of what was known, against the evidence
constexpr double kMostSurprise = 3;
constexpr int kSweeps = 20;
constexpr double kLeastUs = 100;  // below, a step is measured too badly to count relative to its length

}  // namespace

StepTimeModel::Vector StepTimeModel::features_of(const StepLoad& load) {
  return {1, load.decode_rows / kDecodeRows, load.prefill_rows / kPrefillRows,
          static_cast<double>(load.decode_context) / kDecodeTokens,
          static_cast<double>(load.prefill_context) / kPrefillTokens};
}

void StepTimeModel::Evidence::add(const Vector& x, double y, double keep) {
  for (size_t i = 0; i < kFeatures; ++i) {
    for (size_t j = 0; j < kFeatures; ++j) xx[i][j] = keep * xx[i][j] + x[i] * x[j];
    xy[i] = keep * xy[i] + x[i] * y;
  }
}

void StepTimeModel::learn(const StepLoad& load, int64_t took_us) {
  if (took_us <= 0) return;
  const bool has_prefill = load.prefill_rows > 0;
  int& n_steps = has_prefill ? n_prefill_steps_ : n_decode_steps_;
  double us = static_cast<double>(took_us);
  if (n_steps >= 2 * kEnough) us = std::min(us, kMostSurprise * std::max(predict_us(load), kLeastUs));
  n_steps = std::min(n_steps + 1, 2 * kEnough);
  Vector x = features_of(load);
  const double scale = 1 / std::max(us, kLeastUs);
  for (double& value : x) value *= scale;
  (has_prefill ? prefills_ : decodes_).add(x, us * scale, has_prefill ? kKeepPrefills : kKeepDecodes);
  fit();
}

// Coordinate descent from the costs as they were.
void StepTimeModel::fit() {
  const Vector before = cost_;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kFeatures; ++i) {
      const double own = decodes_.xx[i][i] + prefills_.xx[i][i];
      if (own == 0) continue;
      double rest = decodes_.xy[i] + prefills_.xy[i];
      for (size_t j = 0; j < kFeatures; ++j) {
        if (j != i) rest -= (decodes_.xx[i][j] + prefills_.xx[i][j]) * cost_[j];
      }
      cost_[i] = std::max(0.0, (rest + kInertia * own * before[i]) / (own * (1 + kInertia)));
    }
  }
}

double StepTimeModel::predict_us(const StepLoad& load) const {
  const Vector x = features_of(load);
  double us = 0;
  for (size_t i = 0; i < kFeatures; ++i) us += x[i] * cost_[i];
  return us;
}

double StepTimeModel::prefill_us(int32_t n, int64_t context) const {
  StepLoad rows;
  rows.add_prefill(static_cast<int32_t>(context), n);
  return predict_us(rows) - cost_[kStep];
}

// n rows cost b n + a n^2.
int32_t StepTimeModel::prefill_rows_within(double us, int64_t context) const {
  const double per_token = cost_[kPrefillContext] / kPrefillTokens;
  const double a = per_token / 2,
               b = cost_[kPrefillRow] / kPrefillRows + per_token * (static_cast<double>(context) + 0.5);
  if (us <= 0) return 0;
  const double n = a > 0 ? (std::sqrt(b * b + 4 * a * us) - b) / (2 * a) : us / std::max(b, 1e-9);
  return static_cast<int32_t>(std::min(n, 1e9));
}

}  // namespace pagoda::sched
