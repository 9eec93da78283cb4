#include "serve/drain_rate.h"

#include <algorithm>
#include <cmath>

namespace pagoda::serve {
namespace {

constexpr double kDecayUs = 30e6;

int clamped(double seconds, int most) { return static_cast<int>(std::clamp(std::ceil(seconds), 1.0, double(most))); }

}  // namespace

void DrainRate::begin_busy() {
  if (is_busy_) return;
  is_busy_ = true;
  busy_since_us_ = clock_.now_us();
}

void DrainRate::end_busy() {
  busy_before_us_ = busy_us();
  is_busy_ = false;
}

int64_t DrainRate::busy_us() const { return busy_before_us_ + (is_busy_ ? clock_.now_us() - busy_since_us_ : 0); }

void DrainRate::count_answered() {
  const int64_t now_us = busy_us();
  weight_ = weight_ * std::exp(-static_cast<double>(now_us - counted_us_) / kDecayUs) + 1;
  counted_us_ = now_us;
}

// The weights of a rate r that began busy time b ago add up to r * decay * (1 - exp(-b / decay)).
double DrainRate::answered_per_s() const {
  constexpr double kLeastUs = 1e5;  // a first answer within a moment says little
  const auto now_us = static_cast<double>(busy_us());
  const double weight = weight_ * std::exp(-(now_us - static_cast<double>(counted_us_)) / kDecayUs);
  return weight / (kDecayUs * 1e-6 * (1 - std::exp(-std::max(now_us, kLeastUs) / kDecayUs)));
}

int DrainRate::seconds_until(size_t n_answered) const {
  if (weight_ == 0) return clamped(static_cast<double>(busy_us()) * 1e-6, kMostUnmeasuredSeconds);
  return clamped(static_cast<double>(n_answered) / std::max(answered_per_s(), 1e-9), kMostSeconds);
}

}  // namespace pagoda::serve
