// Countdown: who finishes last goes on with what all the others' work was needed for, instead of a barrier.
// Threads: set() between phases, arrive() by any part.     It winds itself up again for the next phase.
#pragma once

#include <atomic>

namespace pagoda::models {

class Countdown {
 public:
  void set(int n) {
    start_ = n;
    left_.store(n, std::memory_order_relaxed);
  }

  // Takes n off. True for whoever brings it to zero, who then sees what all others wrote before they arrived.
  bool arrive(int n = 1) {
    if (left_.fetch_sub(n, std::memory_order_acq_rel) != n) return false;
    left_.store(start_, std::memory_order_relaxed);
    return true;
  }

 private:
  std::atomic<int> left_{0};
  int start_ = 0;
};

}  // namespace pagoda::models
