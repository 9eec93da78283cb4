// bf16 attention over AMX tiles, as tests call it. Internal to kernels.
#pragma once

#include "kernels/kernels.h"

namespace pagoda::kernels {

// The driver of bf16 attention over EmulatedTiles: for comparison with ref wherever AVX-512 with BF16 runs. An attention_span.
void attention_span_emulated_tiles(const AttentionArgs& args, int span, float* partial, std::byte* scratch);

}  // namespace pagoda::kernels
