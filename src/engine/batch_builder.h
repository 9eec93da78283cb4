// BatchBuilder: turns a scheduler's plan into the batch that executors run. Reuses its vectors: steady state allocates nothing.
// Threads: engine thread only.
#pragma once

#include <span>

#include "models/batch.h"
#include "models/blocks.h"
#include "sched/scheduler.h"

namespace pagoda::engine {

class BatchBuilder {
 public:
  // `groups`: of the plan's model; heads_per_kv = n_heads / n_kv_heads fixes how many tokens one attention tile takes.
  // `mode_of(seq)` says whether the last row of a sampling sequence needs its whole logits row.
  template <typename ModeOf>
  const models::Batch& build(const sched::StepPlan& plan, const sched::Scheduler& scheduler, size_t n_groups,
                             int heads_per_kv, ModeOf&& mode_of) {
    begin(plan.model, n_groups);
    for (const sched::SeqRows& rows : plan.rows) {
      const sched::Sequence* sequence = scheduler.find(rows.seq);
      add_rows(rows, *sequence, heads_per_kv, rows.n_logits == 1 ? mode_of(rows.seq) : models::SampleMode::kLogits);
    }
    return batch_;
  }

 private:
  void begin(kv::ModelId model, size_t n_groups);
  void add_rows(const sched::SeqRows& rows, const sched::Sequence& sequence, int heads_per_kv, models::SampleMode mode);

  models::Batch batch_;
};

}  // namespace pagoda::engine
