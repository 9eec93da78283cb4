// Executor: runs batches for one process's models and holds the bytes of their KV blocks. The seam at which a GPU or ranks come in:
// what crosses it is plain data (block ops, Batch, results).
// Threads: engine thread; BlockIo from any thread.     Errors: none at run time: a batch that does not fit is a bug -> CHECK.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/block_store.h"
#include "kv/block_op.h"
#include "models/batch.h"
#include "models/model.h"

namespace pagoda::engine {

// One sampling row's answer.
struct SampleResult {
  int row = 0;                                     // of the batch
  TokenId greedy;                                  // index of the largest logit, lowest on ties
  std::span<const float> logits;                   // [vocab], valid until the next run; empty in SampleMode::kGreedy
  std::span<const kernels::LogitTile> tiles = {};  // the largest of each kLogitsTile, indices of the row; valid as long
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs the ops in order, then the batch. Results by sampling row, in the batch's order, valid until the next run.
  virtual std::span<const SampleResult> run(std::span<const kv::BlockOp> ops, const models::Batch& batch) = 0;
  // Of the last run, as the calling thread saw it.
  virtual int64_t attention_us() const = 0;
  virtual BlockStore& store() = 0;
};

struct ExecutorLimits {
  int max_rows = 0;  // of a batch
  int max_samples = 0;
  int max_context = 0;  // tokens of one sequence; longer ones are computed too, but split less
};

// Weights, and how their K and V are stored: one model may be run in several KV formats.
struct ExecutedModel {
  const models::Model* model = nullptr;
  std::span<const models::AttentionGroup> groups;
};

// Runs on this machine's cores. `models`: by ModelId; they, the store and the pool must outlive it.
Result<std::unique_ptr<Executor>> make_cpu_executor(std::span<const ExecutedModel> models, BlockStore& store,
                                                    ThreadPool& pool, const kernels::KernelTable& kernels,
                                                    kernels::Arithmetic arithmetic, ExecutorLimits limits);

}  // namespace pagoda::engine
