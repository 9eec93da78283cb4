// Loader: a GGUF file's tensors, by name and expected shape, into panels and vectors that the model owns.
// Each tensor is repacked by all workers, some MiB at a time, and its file pages are let go at once, so that resident memory never exceeds
// the model's size by more than that.
// Threads: worker 0, inside no Step.     Errors: missing, misshapen or unsupported tensors by name, and tensors no part of the family uses:
// a file with more than we compute would answer wrongly.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "models/blocks.h"
#include "tensor/arena.h"
#include "weights/gguf.h"
#include "weights/model_config.h"
#include "weights/repack.h"

namespace pagoda::models {

// What a family's file holds beside the bare minimum.
enum class Part : uint8_t { kAbsent, kOptional, kRequired };
struct AttentionParts {
  Part qkv_bias = Part::kAbsent;
  Part qk_norm = Part::kAbsent;
};

struct LoadedWeights {
  weights::ModelConfig config;
  std::vector<AttentionGroup> groups;
  tensor::Arena arena;  // all of them
};

// "blk.3.attn_q.weight".
std::string layer_tensor(int layer, std::string_view name);

class Loader {
 public:
  Loader(const weights::Gguf& gguf, weights::ModelConfig config, std::vector<AttentionGroup> groups, ThreadPool& pool);

  const weights::ModelConfig& config() const { return weights_.config; }

  Result<Linear> embedding();
  // The output projection, or the embedding where the file ties them.
  Result<Linear> output(const Linear& embedding);
  Result<Norm> norm(const std::string& name);  // [embed_dim]
  Result<Attention> attention(int layer, AttentionParts parts);
  Result<GatedMlp> gated_mlp(int layer, kernels::Activation activation);

  // Hands over everything loaded, unless the file holds tensors nobody asked for.
  Result<LoadedWeights> finish();

 private:
  void repack(const weights::FileMatrix& source, const weights::TensorInfo& info,
              const weights::RepackedMatrix& matrix);
  Result<Linear> linear(const std::string& name, int n_outputs, int n_inputs, Part bias);
  Result<const float*> vector(const std::string& name, int n, Part part);  // nullptr if absent and allowed to be
  Result<Norm> head_norm(const std::string& name, Part part);              // [head_dim]
  Result<const weights::TensorInfo*> tensor(const std::string& name, std::span<const int64_t> shape);

  const weights::Gguf& gguf_;
  ThreadPool& pool_;
  LoadedWeights weights_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace pagoda::models
