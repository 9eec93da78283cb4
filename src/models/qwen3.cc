// Qwen3 (dense): a norm over each head of Q and K instead of Qwen2's bias. Source: Qwen Team 2025 (Qwen3 technical report).
#include "models/families.h"

namespace pagoda::models {

Result<std::unique_ptr<Model>> load_qwen3(Loader& loader) {
  return load_pre_norm_decoder(loader, {.qkv_bias = Part::kOptional, .qk_norm = Part::kRequired});
}

}  // namespace pagoda::models
