// Probes: loops that keep one resource of a core busy and do nothing useful, so that a result can be printed beside its limit.
// Rates come from who times them (tools/machine_probe.h). The second header of this folder that others include, for that purpose only.
// Threads: any; a loop touches no memory but what it is given.     Results of the arithmetic are thrown away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/kernels.h"

namespace pagoda::kernels {

// What a dot product multiplies. kInt4 ... kInt8: int8 activations with codes of at most 4, 5, 6, 8 bits. AVX2 sums 8, 4, 2, 1 products in 16
// bits before it widens them, so narrow codes are faster there; to VNNI they are all the same. kInt15: weights of 15 bits with int8, as
// attention's P.V has them: 16-bit products on AVX2, two planes of bytes to VNNI.
enum class DotKind : uint8_t { kF32, kInt4, kInt5, kInt6, kInt8, kInt15, kBf16 };
inline constexpr int kDotKinds = 7;
std::string_view to_string(DotKind kind);

struct DotLoop {
  void (*run)(int64_t n_rounds) = nullptr;  // operands stay in registers
  double ops_per_round = 0;                 // a product and its addition are two
};

// The fastest way `isa` has for such products. No `run`: it has none of its own (bf16 without AMX is computed as kF32).
// Requires an instruction set of supported_isas().
DotLoop dot_loop(Isa isa, DotKind kind);

// Reads every whole 64 bytes of `bytes` once, with the widest loads that `isa` has. The result says nothing.
uint64_t read_bytes(Isa isa, std::span<const std::byte> bytes);

// n multiplications of 64 bits, each waiting for the one before: kMultiplyCycles core cycles each, on every x86 since 2008.
// Source: latency tables at uops.info (IMUL r64, r64).
uint64_t multiply_chain(int64_t n);
inline constexpr int kMultiplyCycles = 3;

}  // namespace pagoda::kernels
