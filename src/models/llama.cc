// Llama 2 and 3, Mistral, SmolLM. Source: Touvron et al. 2023 (Llama 2).
#include "models/families.h"

namespace pagoda::models {

Result<std::unique_ptr<Model>> load_llama(Loader& loader) {
  return load_pre_norm_decoder(loader, {.qkv_bias = Part::kOptional, .qk_norm = Part::kAbsent});
}

}  // namespace pagoda::models
