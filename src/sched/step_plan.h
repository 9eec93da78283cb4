// StepPlan: what one scheduler turn decided, for one model. Plain data; the vectors are reused from step to step.
#pragma once

#include <cstdint>
#include <vector>

#include "base/token_id.h"
#include "kv/block_op.h"
#include "kv/ids.h"
#include "sched/sequence.h"
#include "sched/step_time.h"

namespace pagoda::sched {

enum class Sampling : uint8_t {
  kNone,     // a chunk in the middle of a prefill
  kLastRow,  // the chunk ends at the sequence's last token: its last row yields the next one
};

// Consecutive tokens of one sequence, one row each: positions [first_position, first_position + n_tokens).
struct SeqRows {
  SeqId seq;
  int32_t first_position = 0;
  int32_t n_tokens = 0;
  int32_t n_logits = 0;  // logits are wanted of the last n_logits rows; at least 1 where the last row samples
  Sampling sampling = Sampling::kNone;
};

// A sequence that the scheduler itself had to end. It is gone: finish() need not be called.
struct EndedSeq {
  SeqId seq;
  FinishReason reason = FinishReason::kNone;
};

struct StepPlan {
  kv::ModelId model;
  std::vector<SeqRows> rows;           // decodes first, then prefill chunks
  std::vector<kv::BlockOp> block_ops;  // run in order before the forward
  std::vector<SeqId> preempted;        // of any model: their blocks are gone, they will be recomputed
  std::vector<EndedSeq> ended;         // of any model

  // Nothing to run now. `preempted` and `ended` may still say something.
  bool empty() const { return rows.empty(); }
  int32_t n_tokens() const {
    int32_t n = 0;
    for (const SeqRows& seq_rows : rows) n += seq_rows.n_tokens;
    return n;
  }
  StepLoad load() const {
    StepLoad load;
    for (const SeqRows& seq_rows : rows) {
      if (seq_rows.n_tokens == 1 && seq_rows.sampling == Sampling::kLastRow) {
        load.add_decode(seq_rows.first_position);
      } else {
        load.add_prefill(seq_rows.first_position, seq_rows.n_tokens);
      }
    }
    return load;
  }
  void clear() {
    rows.clear();
    block_ops.clear();
    preempted.clear();
    ended.clear();
  }
};

// What became of one SeqRows.
struct StepOutcome {
  enum class Kind : uint8_t {
    kComputed,  // K and V are written, nothing was sampled
    kSampled,   // and `token` comes next; only where sampling is kLastRow
    kFailed,    // this sequence cannot go on; it ends with FinishReason::kFailed. The others are not touched
  };
  Kind kind = Kind::kComputed;
  TokenId token;
};

}  // namespace pagoda::sched
