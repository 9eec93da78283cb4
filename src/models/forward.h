// Forward: one step of one model, as the blocks its family calls in order. Each call is a few phases over all workers with a barrier
// after each; within a phase a worker writes only its own rows or columns, so results do not depend on the number of workers.
// Row-wise work (norms, rope) is split by rows, matmuls by 16-output panels, attention by (row tile, KV head).
// Threads: worker 0, inside a ThreadPool::Step.     No allocation after the first steps.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "models/batch.h"
#include "models/blocks.h"
#include "models/exec_context.h"

namespace pagoda::models {

// The batch's blocks as this executor holds them: [group][i] is the address of GroupBatch::blocks[i].
using BlockAddresses = std::vector<std::vector<std::byte*>>;

// What stays the same from step to step: sizes, rope, and the buffers of the attention plan.
struct ForwardPlan {
  const weights::ModelConfig* config = nullptr;
  std::span<const AttentionGroup> groups;
  RopeTable global_rope;
  RopeTable local_rope;

  ForwardPlan(const weights::ModelConfig& model_config, std::span<const AttentionGroup> attention_groups);

  // Per group, one tile per AttentionWork: its rows as kernels want them (a row is a (token, query head of the KV head) pair).
  struct Tile {
    int sequence = 0;
    int first = 0;  // into row_offset and position
    int n_rows = 0;
  };
  std::vector<std::vector<Tile>> tiles;
  std::vector<uint32_t> row_offset;  // in floats, of the KV head's first query head in Workspace::qkv
  std::vector<int32_t> position;
  std::vector<int32_t> row_index;  // 0, 1, 2 ...: rows of the step's rope tables
};

class Forward {
 public:
  Forward(const Batch& batch, const BlockAddresses& blocks, ForwardPlan& plan, const ExecContext& context);

  // x = scale * embedding of each row's token.
  void embed(const Linear& embedding, float scale);
  // x += post(o(attention(rope(norms(qkv(norm(x))))))); K and V of every row are written to its block first. post may be absent.
  void attention(const Norm& norm, const Attention& layer, const Norm& post);
  // x += post(down(act(gate(norm(x))) * up(norm(x)))).
  void mlp(const Norm& norm, const GatedMlp& layer, const Norm& post);
  // logits [n_samples, vocab] = softcap(output(norm(x))) of the sampling rows. 0 = no softcap.
  void head(const Norm& norm, const Linear& output, float softcap);

 private:
  template <typename Fn>
  void by_rows(int n_rows, Fn&& fn);  // fn(rows) on each worker's share
  template <typename Fn>
  void by_panels(int n_panels, int grain, Fn&& fn);  // fn(panels, worker)

  void plan_attention();
  void normalize_input(const Norm& norm);
  void project_qkv(const Attention& layer);
  void rotate_and_store(const Attention& layer);
  void attend(const Attention& layer);
  void project_into_x(const Linear& linear, kernels::MatmulInput input, const Norm& post);
  void multiply(const Linear& linear, kernels::Range panels, const kernels::MatmulInput& input, float* y, int ld_y,
                int worker);
  kernels::MatmulInput input_of(const float* x, int ld, int n_cols) const;
  void quantize(const float* x, int ld, kernels::Range rows, kernels::Range cols, int n_cols);

  const Batch& batch_;
  const BlockAddresses& blocks_;
  ForwardPlan& plan_;
  const ExecContext& context_;
  const kernels::KernelTable& k_;
  Workspace& w_;
  const weights::ModelConfig& config_;
  const int n_rows_;
  const int q_dim_, kv_dim_, qkv_dim_;
  std::atomic<int> next_item_{0};
};

}  // namespace pagoda::models
