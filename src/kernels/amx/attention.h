// bf16 attention over AMX tiles, as tests call it. Internal to kernels.
#pragma once

#include "kernels/kernels.h"

namespace pagoda::kernels {

// bf16 attention over EmulatedTiles: for comparison with ref wherever AVX-512 with BF16 runs.
void use_emulated_tiles(KernelTable& table);

}  // namespace pagoda::kernels
