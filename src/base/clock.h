// Clock: where time comes from, so that schedulers and timeouts run on a fake one in tests. Units: microseconds since an arbitrary start.
#pragma once

#include <atomic>
#include <cstdint>

namespace pagoda {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_us() const = 0;
};

// Monotonic. Any thread.
class SteadyClock final : public Clock {
 public:
  int64_t now_us() const override;
};

// Stands still until told. Any thread.
class FakeClock final : public Clock {
 public:
  int64_t now_us() const override { return now_us_; }
  void advance_us(int64_t us) { now_us_ += us; }

 private:
  std::atomic<int64_t> now_us_ = 0;
};

// Wall-clock time for `created` fields and logs. Any thread.
int64_t unix_seconds();

}  // namespace pagoda
