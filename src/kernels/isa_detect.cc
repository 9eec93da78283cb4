#include "kernels/isa_detect.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pagoda::kernels {
namespace {

constexpr uint32_t bit(int i) { return uint32_t{1} << i; }

// CPUID.1:ECX
constexpr uint32_t kFma = bit(12);
constexpr uint32_t kOsxsave = bit(27);
constexpr uint32_t kAvx = bit(28);
constexpr uint32_t kF16c = bit(29);
// CPUID.7.0:EBX, ECX and EDX, CPUID.7.1:EAX
constexpr uint32_t kAvx2 = bit(5);
constexpr uint32_t kAvx512f = bit(16);
constexpr uint32_t kAvx512dq = bit(17);
constexpr uint32_t kAvx512bw = bit(30);
constexpr uint32_t kAvx512vl = bit(31);
constexpr uint32_t kAvx512vnni = bit(11);
constexpr uint32_t kAmxBf16 = bit(22);
constexpr uint32_t kAmxTile = bit(24);
constexpr uint32_t kAvx512bf16 = bit(5);
// XCR0: SSE and AVX state; opmask and both halves of zmm state; tile configuration and data.
constexpr uint64_t kYmmState = bit(1) | bit(2);
constexpr uint64_t kZmmState = kYmmState | bit(5) | bit(6) | bit(7);
constexpr uint64_t kTileState = bit(17) | bit(18);

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

// Fails on a kernel before 5.16 and where a sandbox forbids it.
bool request_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
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
    words.leaf7_edx = edx;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) words.leaf7_1_eax = eax;
  if (has_all(words.leaf1_ecx, kOsxsave)) words.xcr0 = read_xcr0();
  if (has_all(words.leaf7_edx, kAmxTile) && has_all(words.xcr0, kTileState)) words.tiles_granted = request_tiles();
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
  if (!avx512) return isas;
  isas.push_back(Isa::kAvx512);
  const bool amx = has_all(words.leaf7_edx, kAmxTile | kAmxBf16) && has_all(words.leaf7_1_eax, kAvx512bf16) &&
                   has_all(words.xcr0, kTileState) && words.tiles_granted;
  if (amx) isas.push_back(Isa::kAmx);
  return isas;
}

}  // namespace pagoda::kernels
