// How fast a tier is, and how fast it may be written. Plain arithmetic on times that the caller gives.
// Units: bytes, microseconds.   Threads: guarded by the owner.   Cost: O(1).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagoda::kv {

// Bytes per second while at least one transfer is under way, so that transfers side by side count once: what the next one may expect.
class RateMeter {
 public:
  void begin(int64_t now_us) {
    if (n_active_++ == 0) start_window(now_us);
  }
  // bytes: 0 for a transfer that failed; its time counts.
  void end(int64_t now_us, size_t bytes) {
    --n_active_;
    window_bytes_ += static_cast<double>(bytes);
    if (n_active_ > 0 && now_us - window_start_us_ < kWindowUs) return;
    const auto us = static_cast<double>(std::max<int64_t>(now_us - window_start_us_, 1));
    const double rate = window_bytes_ * 1e6 / us;
    // A window counts by its share of the memory: bytes, or the time it wasted.
    const double weight =
        is_measured_ ? std::max(window_bytes_ / (window_bytes_ + kMemoryBytes), us / (us + kMemoryUs)) : 1;
    bytes_per_s_ += weight * (rate - bytes_per_s_);
    is_measured_ = true;
    start_window(now_us);
  }
  // It found nothing to transfer: neither bytes nor time count.
  void cancel() { --n_active_; }
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  static constexpr int64_t kWindowUs = 20'000;
  static constexpr double kMemoryBytes = 64e6;
  static constexpr double kMemoryUs = 1e6;

  void start_window(int64_t now_us) {
    window_start_us_ = now_us;
    window_bytes_ = 0;
  }

  int n_active_ = 0;
  int64_t window_start_us_ = 0;
  double window_bytes_ = 0;
  double bytes_per_s_ = 0;
  bool is_measured_ = false;
};

// Lets `bytes_per_s` through, and bursts of a second's worth. 0: everything.
class WritePace {
 public:
  explicit WritePace(uint64_t bytes_per_s)
      : us_per_byte_(bytes_per_s == 0 ? 0 : 1e6 / static_cast<double>(bytes_per_s)) {}

  // When the next write may start; not later than now: at once.
  int64_t ready_at_us() const { return static_cast<int64_t>(paid_until_us_) - kBurstUs; }
  void spend(int64_t now_us, size_t bytes) {
    paid_until_us_ = std::max(paid_until_us_, static_cast<double>(now_us)) + us_per_byte_ * static_cast<double>(bytes);
  }

 private:
  static constexpr int64_t kBurstUs = 1'000'000;
  double us_per_byte_;
  double paid_until_us_ = 0;
};

}  // namespace pagoda::kv
