// StartOrder: whom of those in line to let start first.
// Among tenants: the better priority, each `age_us` of waiting counting as one better, up to the best that is there; then one of whom nothing
// runs; then whoever has been served less for its weight, what is about to start counted in.
// Of one tenant: its requests' own priorities, aged likewise; then the longest cached prefix, because it takes the fewest steps and its blocks may
// be gone later, but nobody is overtaken for longer than a bound; then in line order.
// Pure: the scheduler keeps estimates of hits fresh.     Cost: O(n log n) in the line's length.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sched/fair_shares.h"
#include "sched/sequence.h"

namespace pagoda::sched {

class StartOrder {
 public:
  static constexpr size_t kLookAhead = 32;  // of each tenant's, longer prefixes are looked for

  // `age_bound_us`: who has been in line for longer is overtaken no more.
  StartOrder(int64_t age_bound_us, int64_t age_us) : age_bound_us_(age_bound_us), age_us_(age_us) {}

  // `line` in policy order. Valid until the next call.
  const std::vector<Sequence*>& of(const std::deque<Sequence*>& line, int64_t now_us, const FairShares& shares);

 private:
  struct Queue {
    Share share;
    std::vector<Sequence*> sequences{};
    size_t next = 0;
    bool is_owed = false;
    int64_t priority = 0;
    double served = 0;
  };
  void sort_own(std::vector<Sequence*>& sequences, int64_t now_us) const;
  void split(const std::deque<Sequence*>& line, int64_t now_us, const FairShares& shares);

  int64_t age_bound_us_, age_us_;
  std::vector<Queue> queues_;
  std::vector<Sequence*> order_;
};

}  // namespace pagoda::sched
