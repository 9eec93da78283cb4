// One loader per family; registry.cc maps architectures to them.
#pragma once

#include <memory>

#include "models/loader.h"
#include "models/model.h"

namespace pagoda::models {

Result<std::unique_ptr<Model>> load_llama(Loader& loader);
Result<std::unique_ptr<Model>> load_qwen2(Loader& loader);
Result<std::unique_ptr<Model>> load_qwen3(Loader& loader);
Result<std::unique_ptr<Model>> load_gemma3(Loader& loader);

// The decoder that most families are: norm before each block, gated SiLU MLP, no norm after. They differ in what attention holds.
Result<std::unique_ptr<Model>> load_pre_norm_decoder(Loader& loader, AttentionParts parts);

}  // namespace pagoda::models
