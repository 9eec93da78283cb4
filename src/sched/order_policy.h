// OrderPolicy: who is served before whom. The waiting line, prefill chunks and the choice of victims (the last one) follow it.
// A strict total order that does not change while sequences live: the first one can always take the blocks of the others, which is
// why the scheduler always makes progress.
#pragma once

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

}  // namespace pagoda::sched
