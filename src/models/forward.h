// Forward: one step of one model, as the blocks its family calls in order. A block is a few phases over all parts, with a barrier
// after each. Matmuls are split by 16-output panels, attention as attention_plan.h says; whoever finishes a head or a tile goes on
// with what needs all of it. Results do not depend on the number of parts. Five barriers per layer:
//   norm, quantize; Q, K, V; norm and rope of each head, KV write | attention, quantize | output, residual |
//   norm, quantize; gate, up; activation, quantize | down, residual
// In short steps (kShortRows) every part does the norms of all rows for itself. In longer ones that would cost more than a barrier,
// and so would a head's rows on one part: norms, rope and KV writes are split by rows then, in phases of their own.
// Steps with kRowsPerPart rows or more for every part are split by rows all the way, since nothing but attention needs other rows:
// each part expands all weights for itself, but what it computes stays in its cache. Three barriers per layer:
//   norm, Q, K, V, rope, KV write | attention, quantize | output, residual, norm, gate, up, activation, down, residual
// Threads: part 0's, inside a ThreadPool::Step.     No allocation.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/attention_plan.h"
#include "models/batch.h"
#include "models/blocks.h"
#include "models/countdown.h"
#include "models/exec_context.h"

namespace pagoda::models {

// The batch's blocks as this executor holds them: [group][i] is the address of GroupBatch::blocks[i].
using BlockAddresses = std::vector<std::vector<std::byte*>>;

// What stays the same from step to step, and the buffers of what is planned for each.
struct ForwardPlan {
  ForwardPlan(const weights::ModelConfig& model_config, std::span<const AttentionGroup> attention_groups,
              const StepLimits& limits);

  const weights::ModelConfig* config = nullptr;
  std::span<const AttentionGroup> groups;
  RopeTable global_rope;
  RopeTable local_rope;

  std::vector<AttentionPlan> attention;    // by group
  AttentionPlan pruned;                    // of the last layer, where only some rows are needed
  std::vector<std::vector<int>> block_of;  // [group][row]: where its block is in the group's list
  std::vector<int32_t> row_index;          // row of the step -> row of the batch, which is that of the rope tables
  std::vector<int32_t> step_row;           // the reverse; -1 for rows that were dropped
  std::unique_ptr<Countdown[]>
      panels_left;  // [n_heads + n_kv_heads]: panels of Q, or of K and V, that a head still lacks
};

class Forward {
 public:
  Forward(const Batch& batch, const BlockAddresses& blocks, ForwardPlan& plan, const ExecContext& context);

  // x = scale * embedding of each row's token.
  void embed(const Linear& embedding, float scale);
  // x += post(o(attention(rope(norms(qkv(norm(x))))))); K and V of every row are written to its block first. post may be absent.
  // In the last layer only sampling rows go on from there.
  void attention(const Norm& norm, const Attention& layer, const Norm& post);
  // x += post(down(act(gate(norm(x))) * up(norm(x)))).
  void mlp(const Norm& norm, const GatedMlp& layer, const Norm& post);
  // logits [n_samples, vocab] = softcap(output(norm(x))) of the sampling rows, and their tiles. 0 = no softcap.
  void head(const Norm& norm, const Linear& output, float softcap);

  int n_phases() const { return n_phases_; }              // run so far, each with a barrier
  int64_t attention_us() const { return attention_us_; }  // scores and P.V of all layers so far, without projections

 private:
  using Range = kernels::Range;
  using MatmulInput = kernels::MatmulInput;
  struct Projection {
    const Linear* linear;
    int column;  // of qkv
  };

  // One phase: fn(part) on all parts.
  template <typename Fn>
  void run(Fn&& fn) {
    ++n_phases_;
    context_.pool.run(fn);
  }
  template <typename Fn>
  void by_rows(int n_rows, Fn&& fn);  // fn(rows, part) on each part's share
  Range share(int count, int grain, int part) const;
  bool is_short() const { return n_rows_ <= kShortRows; }
  bool is_split_by_rows() const { return n_rows_ >= kRowsPerPart * context_.pool.n_workers(); }

  // One phase of fn(part, input), input being the normalized rows; before it x takes up what its last block left in h.
  template <typename Fn>
  void on_normalized(const Norm& norm, Fn&& fn);
  void normalize(const Norm& norm, Range rows, int part);
  MatmulInput normalize_for(int part, const Norm& norm);
  void convert(const float* x, int ld, Range rows, Range cols, const InputForms& forms, int n_cols) const;
  MatmulInput input_of(const float* x, int ld, int n_cols, const InputForms& forms) const;
  MatmulInput packed(MatmulInput input, const Linear& linear, Range rows) const;
  void multiply(const Linear& linear, Range panels, const MatmulInput& input, Range rows, float* y, int ld_y,
                int part) const;
  void project_into_x(const Linear& linear, const MatmulInput& input, const Norm& post);
  void project_pending(Range rows, int part) const;
  void gate_and_up(const GatedMlp& layer, Range panels, const MatmulInput& input, Range rows, int part) const;

  void keep_sampling_rows();
  void project_heads(const Norm& norm, const Attention& layer, std::span<const Projection> projections, Range heads);
  void project_rows(std::span<const Projection> projections, Range rows, int part) const;
  void arrive_at_heads(const Attention& layer, Range columns);
  void finish_heads(const Attention& layer, Range heads, Range rows) const;
  void store_heads(const Attention& layer, Range kv_heads, Range rows) const;
  void attend(const Attention& layer, AttentionPlan& plan);
  void attend_segment(const Attention& layer, AttentionPlan& plan, std::span<const AttentionPlan::Chunk> chunks,
                      int part) const;
  void attend_chunk(const kernels::AttentionArgs& args, AttentionPlan& plan, const AttentionPlan::Chunk& chunk,
                    int part) const;
  void attend_spans(const kernels::AttentionArgs& args, const AttentionPlan& plan, const AttentionPlan::Chunk& chunk,
                    float* fold, int part) const;
  kernels::AttentionArgs args_of(const Attention& layer, const AttentionPlan& plan,
                                 const AttentionPlan::Chunk& chunk) const;
  kernels::AttentionNext first_blocks(const Attention& layer, const AttentionPlan& plan,
                                      const AttentionPlan::Chunk& chunk) const;
  float* slot_of(const AttentionPlan::Chunk& chunk, int n_rows, int span) const;

  const Batch& batch_;
  const BlockAddresses& blocks_;
  ForwardPlan& plan_;
  const ExecContext& context_;
  const kernels::KernelTable& k_;
  Workspace& w_;
  const weights::ModelConfig& config_;
  const int q_dim_, kv_dim_, qkv_dim_;
  int n_rows_;  // of the step: the batch's, until the last layer drops those that nobody needs
  float* x_;
  float* x_next_;
  // What x still lacks: post(h), if there is a post; where there is a linear, h is linear(input) first, and without a post x lacks h.
  struct Pending {
    const Linear* linear = nullptr;
    MatmulInput input;
    Norm post;
  };
  Pending pending_;
  int n_phases_ = 0;
  int64_t attention_us_ = 0;
  std::atomic<int> next_segment_{0};
};

template <typename Fn>
void Forward::by_rows(int n_rows, Fn&& fn) {
  run([&](int part) {
    const Range rows = share(n_rows, 1, part);
    if (rows.size() > 0) fn(rows, part);
  });
}

template <typename Fn>
void Forward::on_normalized(const Norm& norm, Fn&& fn) {
  if (!is_short()) {
    by_rows(n_rows_, [&](Range rows, int part) { normalize(norm, rows, part); });
    const MatmulInput input = input_of(w_.h, config_.embed_dim, config_.embed_dim, w_.outer);
    run([&](int part) { fn(part, input); });
  } else {
    run([&](int part) { fn(part, normalize_for(part, norm)); });
    if (pending_.post) std::swap(x_, x_next_);
  }
  pending_ = {};
}

}  // namespace pagoda::models
