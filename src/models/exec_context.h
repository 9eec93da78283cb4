// ExecContext: what a forward computes with: kernels, threads and scratch. Passed, not global: two executors may live in one process.
#pragma once

#include <cstddef>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "tensor/aligned_buffer.h"
#include "weights/model_config.h"

namespace pagoda::models {

// Steps of up to this many rows are short: a barrier costs more than doing the same twice, so every part normalizes all rows for
// itself. Measured with two threads on Zen 5: one stream gains 7 %, 12 rows nothing, 24 rows would lose 15 %.
inline constexpr int kShortRows = 8;

// Steps with this many rows for every part and more are split by rows. Every part then expands all weights, which fewer rows do not pay.
inline constexpr int kRowsPerPart = 128;

// The largest step that a workspace is for.
struct StepLimits {
  int max_rows = 0;
  int max_samples = 0;
  int max_context = 0;  // tokens of one sequence
  int n_parts = 0;      // of the thread pool's runs
};

// The forms of a matmul's input other than f32; an arithmetic fills its own.
struct InputForms {
  int8_t* q = nullptr;  // as kernels::QuantRows says
  float* d = nullptr;
  int16_t* sums16 = nullptr;
  uint16_t* bf16 = nullptr;
};

// What one part of a phase writes and no other part sees.
struct PartScratch {
  std::byte* kernel = nullptr;  // enough for one matmul or attention call
  float* partials = nullptr;    // [kAttentionMaxRows, partial_floats]
  float* h = nullptr;           // [kShortRows, embed_dim] normalized input
  InputForms forms;             // of h
};

// The activations of one step, allocated once for the largest step: nothing allocates while it runs. All row-major f32 unless said.
class Workspace {
 public:
  // For any of the model's widths.
  static Result<Workspace> make(const weights::ModelConfig& config, const StepLimits& limits);
  // What make() allocates; pages that no step touches do not become resident.
  static size_t bytes_for(const weights::ModelConfig& config, const StepLimits& limits);

  // Partials that `slots` holds: every head of a few rows over all spans of the longest context but the first.
  static size_t max_slots(const weights::ModelConfig& config, const StepLimits& limits);
  int n_logit_tiles() const { return n_logit_tiles_; }
  int widest_input() const { return widest_; }  // of any matmul

  StepLimits limits;
  float* x = nullptr;       // [max_rows, embed_dim] the residual stream
  float* x_next = nullptr;  // [max_rows, embed_dim] where it is rewritten while others still read it
  float* h = nullptr;       // [max_rows, embed_dim] normalized input, or a block's output before its norm
  float* qkv = nullptr;     // [max_rows, (n_heads + 2 n_kv_heads) head_dim]; attention writes its result over q
  float* gate = nullptr;    // [max_rows, ffn_dim]
  float* up = nullptr;      // [max_rows, ffn_dim]
  float* logits = nullptr;  // [max_samples, vocab_size]
  kernels::LogitTile* tiles = nullptr;  // [max_samples, n_logit_tiles], indices counted from the row's first logit
  float* rope[2] = {};                  // [max_rows, rope_dim] cos and sin, global and local layers
  InputForms outer;                     // [max_rows, embed_dim] of h
  InputForms heads;                     // [max_rows, n_heads head_dim] of attention's result
  InputForms inner;                     // [max_rows, ffn_dim] of the gate's result
  std::byte* packed = nullptr;          // [max_rows] packed rows of the widest input, each part's at its first row
  float* folds = nullptr;               // [max_rows n_heads] partials
  float* slots = nullptr;               // [max_slots] partials
  std::vector<PartScratch> parts;       // [n_parts]

  size_t bytes() const { return memory_.size(); }

 private:
  Workspace(const weights::ModelConfig& config, const StepLimits& step_limits);
  size_t carve(std::byte* base, const weights::ModelConfig& config);

  int n_logit_tiles_ = 0;
  int widest_ = 0;
  tensor::AlignedBuffer memory_;
};

struct ExecContext {
  const kernels::KernelTable& kernels;
  kernels::Arithmetic arithmetic;
  ThreadPool& pool;
  Workspace& workspace;
};

}  // namespace pagoda::models
