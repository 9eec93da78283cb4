// Qwen2 and Qwen2.5: a bias on Q, K and V. Source: Qwen Team 2024 (Qwen2.5 technical report).
#include "models/families.h"

namespace pagoda::models {

Result<std::unique_ptr<Model>> load_qwen2(Loader& loader) {
  return load_pre_norm_decoder(loader, {.qkv_bias = Part::kRequired, .qk_norm = Part::kAbsent});
}

}  // namespace pagoda::models
