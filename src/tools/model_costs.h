// What a model file costs per row, per sampled row and per token of context, in one arithmetic and KV format: the figures limits.h wants.
#pragma once

#include <span>
#include <vector>

#include "models/blocks.h"
#include "tools/limits.h"
#include "weights/gguf.h"
#include "weights/model_config.h"

namespace pagoda::tools {

// One tensor as the engine holds it: matrices in panels, vectors in f32. Plain data, from a file's table or from a shape.
struct WeightTensor {
  enum class Part : uint8_t {
    kBody,
    kHead,
    kOther
  };  // kHead: the output projection; kOther: what a step does not read
  Part part = Part::kBody;
  tensor::DType dtype = tensor::DType::kF32;
  int n_dims = 2;
  int64_t rows = 1;
  int64_t cols = 0;

  int64_t n_elements() const { return rows * cols; }
  uint64_t held_bytes() const;
};

// All that a loaded model holds. The embedding is the head where it is the output projection too, else kOther.
// Errors: kUnsupported names a tensor of a type that Pagoda does not compute with.
Result<std::vector<WeightTensor>> weight_tensors(const weights::Gguf& gguf);

ModelCosts model_costs(const weights::ModelConfig& config, std::span<const models::AttentionGroup> groups,
                       std::span<const WeightTensor> tensors, kernels::Arithmetic arithmetic);

// Of a file.  Errors: as weights::read_model_config, models::plan_groups and weight_tensors.
Result<ModelCosts> model_costs(const weights::Gguf& gguf, kernels::Arithmetic arithmetic, std::string_view kv_format);

// What multiplies weights of this type.
kernels::DotKind dot_kind(tensor::DType dtype, kernels::Arithmetic arithmetic);

}  // namespace pagoda::tools
