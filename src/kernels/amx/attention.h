// bf16 attention over AMX tiles. Internal to kernels.
#pragma once

#include "kernels/kernels.h"

namespace pagoda::kernels {

// The entries of AVX-512, with attention_span of bf16 arithmetic on tiles.
void fill_attention_amx(KernelTable& table);

// The same driver over EmulatedTiles: for comparison with ref wherever AVX-512 with BF16 runs. An attention_span.
void attention_span_emulated_tiles(const AttentionArgs& args, int span, float* partial, std::byte* scratch);

}  // namespace pagoda::kernels
