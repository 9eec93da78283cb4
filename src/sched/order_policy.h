// OrderPolicy: who is served before whom where only one can be: who finds room, and whose blocks are taken (the last one's).
// A strict total order that does not change while sequences live: the first one can always take the blocks of the others, which is
// why the scheduler always makes progress.
#pragma once

#include <algorithm>

#include "sched/sequence.h"

namespace pagoda::sched {

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  // True if `a` is served before `b`.
  virtual bool before(const Sequence& a, const Sequence& b) const = 0;
};

// First come, first served.
class Fcfs final : public OrderPolicy {
 public:
  bool before(const Sequence& a, const Sequence& b) const override { return a.order() < b.order(); }
};

// The lower priority first, as if each step of it were `age_us` of waiting: whoever has waited for that long goes before one that is a step
// better and comes now. Requests of a tenant may stand back behind others', and go before its own only (StartOrder).
class AgedPriority final : public OrderPolicy {
 public:
  explicit AgedPriority(int64_t age_us) : age_us_(age_us) {}
  bool before(const Sequence& a, const Sequence& b) const override {
    const int64_t a_us = key_us(a), b_us = key_us(b);
    return a_us != b_us ? a_us < b_us : a.order() < b.order();
  }

 private:
  int64_t key_us(const Sequence& seq) const {
    const bool has_tenant = seq.share().tenant != TenantId();
    const int64_t own = has_tenant ? std::max(0, seq.priority()) : seq.priority();
    return seq.queued_us() + age_us_ * (own + seq.share().priority);
  }
  int64_t age_us_;
};

}  // namespace pagoda::sched
