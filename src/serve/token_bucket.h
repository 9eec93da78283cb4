// TokenBucket: so many tokens a minute, saved up for a minute at most. What is used is known when it has been used: take() an estimate,
// give() back what was too much of it, or take more: the bucket may owe, and whoever owes waits longer.
// Threads: one.     Time: its caller's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pagoda::serve {

class TokenBucket {
 public:
  explicit TokenBucket(int64_t now_us) : now_us_(now_us) {}

  // Another rate counts from now on; a bucket never seen before is full.
  void set_rate(int64_t tokens_per_minute, int64_t now_us) {
    const double capacity = static_cast<double>(tokens_per_minute);
    fill(now_us);
    level_ = capacity_ == 0 ? capacity : std::min(level_, capacity);
    capacity_ = capacity;
  }
  // Requires set_rate. How long until so many are there; more than it ever holds: until it is full.
  int64_t wait_us(int64_t tokens, int64_t now_us) {
    fill(now_us);
    const double missing = std::min(static_cast<double>(tokens), capacity_) - level_;
    return missing <= 0 ? 0 : static_cast<int64_t>(std::ceil(missing / capacity_ * kMinuteUs));
  }
  void take(int64_t tokens) { level_ -= static_cast<double>(tokens); }
  void give(int64_t tokens) { level_ = std::min(capacity_, level_ + static_cast<double>(tokens)); }
  double level() const { return level_; }

 private:
  static constexpr double kMinuteUs = 60e6;
  void fill(int64_t now_us) {
    level_ = std::min(capacity_, level_ + capacity_ * static_cast<double>(now_us - now_us_) / kMinuteUs);
    now_us_ = now_us;
  }

  double capacity_ = 0, level_ = 0;  // tokens
  int64_t now_us_ = 0;               // of level_
};

}  // namespace pagoda::serve
