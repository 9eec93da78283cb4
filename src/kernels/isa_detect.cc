#include "kernels/isa_detect.h"

#include <cpuid.h>

namespace pagoda::kernels {
namespace {

constexpr uint32_t bit(int i) { return uint32_t{1} << i; }

// CPUID.1:ECX
constexpr uint32_t kFma = bit(12);
constexpr uint32_t kOsxsave = bit(27);
constexpr uint32_t kAvx = bit(28);
constexpr uint32_t kF16c = bit(29);
// CPUID.7.0:EBX and ECX
constexpr uint32_t kAvx2 = bit(5);
constexpr uint32_t kAvx512f = bit(16);
constexpr uint32_t kAvx512dq = bit(17);
constexpr uint32_t kAvx512bw = bit(30);
constexpr uint32_t kAvx512vl = bit(31);
constexpr uint32_t kAvx512vnni = bit(11);
// XCR0: SSE and AVX state; opmask and both halves of zmm state.
constexpr uint64_t kYmmState = bit(1) | bit(2);
constexpr uint64_t kZmmState = kYmmState | bit(5) | bit(6) | bit(7);

template <typename Word>
bool has_all(Word word, Word bits) {
  return (word & bits) == bits;
}

uint64_t read_xcr0() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

}  // namespace

CpuWords read_cpu_words() {
  CpuWords words;
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) words.leaf1_ecx = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    words.leaf7_ebx = ebx;
    words.leaf7_ecx = ecx;
  }
  if (has_all(words.leaf1_ecx, kOsxsave)) words.xcr0 = read_xcr0();
  return words;
}

std::vector<Isa> isas_of(const CpuWords& words) {
  std::vector<Isa> isas = {Isa::kRef};
  const bool avx2 = has_all(words.leaf1_ecx, kFma | kOsxsave | kAvx | kF16c) && has_all(words.leaf7_ebx, kAvx2) &&
                    has_all(words.xcr0, kYmmState);
  if (!avx2) return isas;
  isas.push_back(Isa::kAvx2);
  const bool avx512 = has_all(words.leaf7_ebx, kAvx512f | kAvx512dq | kAvx512bw | kAvx512vl) &&
                      has_all(words.leaf7_ecx, kAvx512vnni) && has_all(words.xcr0, kZmmState);
  if (avx512) isas.push_back(Isa::kAvx512);
  return isas;
}

}  // namespace pagoda::kernels
