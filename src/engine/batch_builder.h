// BatchBuilder: turns a scheduler's plan into the batch that executors run. Reuses its vectors: steady state allocates nothing.
// Sequences of few rows whose tables begin with the same blocks get one pass of attention over those spans together (models/batch.h),
// whole spans only, so that every answer keeps its bits.     Threads: engine thread only.
#pragma once

#include <span>
#include <vector>

#include "models/batch.h"
#include "models/blocks.h"
#include "sched/scheduler.h"

namespace pagoda::engine {

class BatchBuilder {
 public:
  // What a batch needs of one sequence.
  struct SequenceInput {
    std::span<const TokenId> tokens;  // to compute
    int first_position = 0;
    int n_logits = 0;  // of the last rows
    models::SampleMode last_row = models::SampleMode::kLogits;
    std::vector<std::span<const kv::BlockId>> tables;  // by group
  };

  // `groups`: of the plan's model; heads_per_kv = n_heads / n_kv_heads fixes how many tokens one attention tile takes.
  // `mode_of(seq)` says whether the last row of a sampling sequence needs its whole logits row.
  template <typename ModeOf>
  const models::Batch& build(const sched::StepPlan& plan, const sched::Scheduler& scheduler,
                             std::span<const models::AttentionGroup> groups, int heads_per_kv, ModeOf&& mode_of) {
    begin(plan.model, groups, heads_per_kv);
    for (const sched::SeqRows& rows : plan.rows) {
      add(rows, *scheduler.find(rows.seq), rows.n_logits == 1 ? mode_of(rows.seq) : models::SampleMode::kLogits);
    }
    return finish();
  }

  // The same by hand.
  void begin(kv::ModelId model, std::span<const models::AttentionGroup> groups, int heads_per_kv);
  void add(const SequenceInput& input);
  const models::Batch& finish();

 private:
  void add(const sched::SeqRows& rows, const sched::Sequence& sequence, models::SampleMode mode);
  void plan_work(models::GroupBatch& group, int window);
  int common_spans(const models::GroupBatch& group, int a, int b) const;
  void share(models::GroupBatch& group, models::Rows members, int first_span, int parent, int window);
  void add_tiles(models::GroupBatch& group, int sequence, models::AttentionWork work, int window) const;

  models::Batch batch_;
  std::span<const models::AttentionGroup> groups_;
  int tile_tokens_ = 1;
  SequenceInput input_;
  std::vector<int> members_;    // sequences that may share, those with a common beginning side by side
  std::vector<int> shareable_;  // [n_sequences]: spans at the beginning whose blocks all its rows see whole
};

}  // namespace pagoda::engine
