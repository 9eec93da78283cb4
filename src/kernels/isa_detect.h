// What the processor and the operating system let a program run. Internal to kernels; dispatch.cc turns it into
// instruction sets.
// Source: Intel SDM vol. 1 chapters 14.3 and 15.2-15.4 (detection of AVX, FMA, AVX2, AVX-512).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace pagoda::kernels {

// Raw words; all zero where a leaf does not exist.
struct CpuWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_ecx = 0;
  uint64_t xcr0 = 0;  // register state that the operating system saves; 0 without OSXSAVE
};

CpuWords read_cpu_words();

// From the definition to the best. An instruction set counts only if its registers' state is enabled too.
std::vector<Isa> isas_of(const CpuWords& words);

}  // namespace pagoda::kernels
