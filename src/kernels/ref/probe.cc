// Probe loops in plain C++: what the reference kernels could reach at most.
#include <cmath>
#include <cstring>

#include "kernels/probe_loops.h"

namespace pagoda::kernels {
namespace {

constexpr int kChains = 8;

void f32_rounds(int64_t n) {
  float sums[kChains] = {};
  float a = 1.0F;
  asm volatile("" : "+x"(a));
  for (int64_t i = 0; i < n; ++i) {
    for (float& sum : sums) {
      sum = std::fma(a, a, sum);
      asm volatile("" : "+x"(sum));  // one lane at a time, as ref's loops
    }
  }
}

void int8_rounds(int64_t n) {
  uint32_t sums[kChains] = {};
  uint32_t a = 3;
  for (int64_t i = 0; i < n; ++i) {
    for (uint32_t& sum : sums) {
      asm volatile("" : "+r"(a));
      sum += a * a;
      asm volatile("" : "+r"(sum));
    }
  }
}

}  // namespace

DotLoop dot_loop_ref(DotKind kind) {
  if (kind == DotKind::kBf16) return {};
  return {kind == DotKind::kF32 ? f32_rounds : int8_rounds, 2.0 * kChains};
}

uint64_t read_bytes_ref(std::span<const std::byte> bytes) {
  uint64_t sums[4] = {};
  for (size_t at = 0; at + 64 <= bytes.size(); at += 64) {
    for (size_t i = 0; i < 8; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at + 8 * i, sizeof word);
      sums[i % 4] |= word;
    }
  }
  return sums[0] | sums[1] | sums[2] | sums[3];
}

}  // namespace pagoda::kernels
