// StartOrder: whom of those in line to let start first: the longest cached prefix, because it takes the fewest steps and its blocks may be gone
// later; but nobody is overtaken for longer than a bound, and equal hits go in line order.
// Pure: the scheduler keeps the estimates fresh.     Cost: O(n log n) for the first kLookAhead in line; the rest follow as they stand.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sched/sequence.h"

namespace pagoda::sched {

class StartOrder {
 public:
  static constexpr size_t kLookAhead = 32;

  // `age_bound_us`: who has been in line for longer is overtaken no more.
  explicit StartOrder(int64_t age_bound_us) : age_bound_us_(age_bound_us) {}

  // `line` in policy order. Valid until the next call.
  const std::vector<Sequence*>& of(const std::deque<Sequence*>& line, int64_t now_us);

 private:
  int64_t age_bound_us_;
  std::vector<Sequence*> order_;
};

}  // namespace pagoda::sched
