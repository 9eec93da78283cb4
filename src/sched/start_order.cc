#include "sched/start_order.h"

#include <algorithm>

namespace pagoda::sched {

const std::vector<Sequence*>& StartOrder::of(const std::deque<Sequence*>& line, int64_t now_us) {
  order_.assign(line.begin(), line.end());
  const auto end = order_.begin() + static_cast<ptrdiff_t>(std::min(order_.size(), kLookAhead));
  const auto young = std::stable_partition(
      order_.begin(), end, [&](const Sequence* seq) { return now_us - seq->queued_us() >= age_bound_us_; });
  std::stable_sort(young, end, [](const Sequence* a, const Sequence* b) { return a->hit_tokens > b->hit_tokens; });
  return order_;
}

}  // namespace pagoda::sched
