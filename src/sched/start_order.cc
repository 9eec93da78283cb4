#include "sched/start_order.h"

#include <algorithm>
#include <tuple>

namespace pagoda::sched {

const std::vector<Sequence*>& StartOrder::of(const std::deque<Sequence*>& line, int64_t now_us,
                                             const FairShares& shares) {
  if (!shares.are_several()) {
    order_.assign(line.begin(), line.end());
    sort_own(order_, now_us);
    return order_;
  }
  split(line, now_us, shares);
  order_.clear();
  const auto is_behind = [](const Queue& a, const Queue& b) {
    return std::tuple(a.priority, !a.is_owed, a.served, a.sequences[a.next]->order()) >
           std::tuple(b.priority, !b.is_owed, b.served, b.sequences[b.next]->order());
  };
  std::ranges::make_heap(queues_, is_behind);
  while (!queues_.empty()) {
    std::ranges::pop_heap(queues_, is_behind);
    Queue& queue = queues_.back();
    Sequence* const seq = queue.sequences[queue.next++];
    order_.push_back(seq);
    queue.is_owed = false;
    queue.served += static_cast<double>(seq->n_to_compute()) / std::max(1, queue.share.weight);
    if (queue.next == queue.sequences.size()) {
      queues_.pop_back();
    } else {
      std::ranges::push_heap(queues_, is_behind);
    }
  }
  return order_;
}

// By tenant.
void StartOrder::split(const std::deque<Sequence*>& line, int64_t now_us, const FairShares& shares) {
  queues_.clear();
  for (Sequence* seq : line) {
    const TenantId tenant = seq->share().tenant;
    auto queue = std::ranges::find(queues_, tenant, [](const Queue& one) { return one.share.tenant; });
    if (queue == queues_.end()) {
      queues_.push_back({.share = seq->share(),
                         .is_owed = shares.is_owed(tenant),
                         .priority = INT64_MAX,
                         .served = shares.served(tenant)});
      queue = queues_.end() - 1;
    }
    queue->sequences.push_back(seq);
    const int64_t waited = (now_us - seq->queued_us()) / age_us_;
    queue->priority = std::min(queue->priority, seq->share().priority - waited);
  }
  int64_t best = INT64_MAX;
  for (const Queue& queue : queues_) best = std::min(best, int64_t{queue.share.priority});
  for (Queue& queue : queues_) {
    queue.priority = std::max(best, queue.priority);
    sort_own(queue.sequences, now_us);
  }
}

void StartOrder::sort_own(std::vector<Sequence*>& sequences, int64_t now_us) const {
  int64_t best = INT64_MAX;
  for (const Sequence* seq : sequences) best = std::min(best, int64_t{seq->priority()});
  const auto key = [&](const Sequence* seq) {
    const int64_t waited_us = now_us - seq->queued_us();
    const bool is_young = waited_us < age_bound_us_;
    return std::tuple(std::max(best, seq->priority() - waited_us / age_us_), is_young, is_young ? -seq->hit_tokens : 0);
  };
  // Without priorities the line is in order but for the hits.
  const bool are_plain = std::ranges::all_of(sequences, [](const Sequence* seq) { return seq->priority() == 0; });
  const size_t n = are_plain ? std::min(sequences.size(), kLookAhead) : sequences.size();
  std::ranges::stable_sort(sequences.begin(), sequences.begin() + static_cast<ptrdiff_t>(n), {}, key);
}

}  // namespace pagoda::sched
