// ExecContext: what a forward computes with: kernels, threads and scratch. Passed, not global: two executors may live in one process.
#pragma once

#include <cstddef>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "tensor/aligned_buffer.h"
#include "weights/model_config.h"

namespace pagoda::models {

// The activations of one step, allocated once for the largest step: nothing allocates while it runs. All row-major f32 unless said.
class Workspace {
 public:
  // For up to max_rows rows of any of the model's widths, max_samples sampling rows and n_workers workers.
  static Result<Workspace> make(const weights::ModelConfig& config, int max_rows, int max_samples, int n_workers);

  int max_rows = 0;
  int max_samples = 0;
  float* x = nullptr;         // [max_rows, embed_dim] the residual stream
  float* h = nullptr;         // [max_rows, embed_dim] normalized input, or a block's output before its norm
  float* qkv = nullptr;       // [max_rows, (n_heads + 2 n_kv_heads) head_dim]; attention writes its result over q
  float* gate = nullptr;      // [max_rows, ffn_dim]
  float* up = nullptr;        // [max_rows, ffn_dim]
  float* logits = nullptr;    // [max_samples, vocab_size]
  float* rope[2] = {};        // [max_rows, rope_dim] cos and sin, global and local layers
  int8_t* quant_q = nullptr;  // int8 form of a matmul's input, of any width
  float* quant_d = nullptr;
  int16_t* quant_sums = nullptr;
  std::vector<std::byte*> worker_scratch;  // [n_workers], enough for one matmul or attention call

  size_t bytes() const { return memory_.size(); }

 private:
  tensor::AlignedBuffer memory_;
};

struct ExecContext {
  const kernels::KernelTable& kernels;
  kernels::Arithmetic arithmetic;
  ThreadPool& pool;
  Workspace& workspace;
};

}  // namespace pagoda::models
