// What a model file costs per row, per sampled row and per token of context, in one arithmetic and KV format: the figures limits.h wants.
#pragma once

#include "tools/limits.h"
#include "weights/gguf.h"

namespace pagoda::tools {

// Weights in panels as the engine holds them. The embedding counts only where it is the output projection too.
// Errors: as weights::read_model_config and models::plan_groups.
Result<ModelCosts> model_costs(const weights::Gguf& gguf, kernels::Arithmetic arithmetic, std::string_view kv_format);

// What multiplies weights of this type.
kernels::DotKind dot_kind(tensor::DType dtype, kernels::Arithmetic arithmetic);

}  // namespace pagoda::tools
