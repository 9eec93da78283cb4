// What each instruction set gives to probe.h. Internal to kernels; as in table.h, the functions live outside the target regions.
#pragma once

#include "kernels/probe.h"

namespace pagoda::kernels {

DotLoop dot_loop_ref(DotKind kind);
DotLoop dot_loop_avx2(DotKind kind);
DotLoop dot_loop_avx512(DotKind kind);
DotLoop dot_loop_amx(DotKind kind);  // kBf16 only

uint64_t read_bytes_ref(std::span<const std::byte> bytes);
uint64_t read_bytes_avx2(std::span<const std::byte> bytes);
uint64_t read_bytes_avx512(std::span<const std::byte> bytes);

}  // namespace pagoda::kernels
