// DrainRate: how many calls a second end while there are some, lately; so when one that was turned away may come again.
// A decaying mean over busy time alone: an idle hour does not make a server slow.
// Threads: external synchronization.     Cost: O(1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace pagoda::serve {

class DrainRate {
 public:
  static constexpr int kMostUnmeasuredSeconds = 60, kMostSeconds = 600;

  explicit DrainRate(const Clock& clock) : clock_(clock) {}
  // Between them time counts.
  void begin_busy();
  void end_busy();
  // A call was answered.
  void count_answered();
  // None before the first one.
  double answered_per_s() const;
  // Until so many have been answered, at least 1 and at most kMostSeconds. Before any was: as long as they have taken already.
  int seconds_until(size_t n_answered) const;

 private:
  int64_t busy_us() const;

  const Clock& clock_;
  int64_t busy_before_us_ = 0;  // of busy times that have ended
  int64_t busy_since_us_ = 0;
  bool is_busy_ = false;
  double weight_ = 0;  // of all that were answered, as of counted_us_
  int64_t counted_us_ = 0;
};

}  // namespace pagoda::serve
