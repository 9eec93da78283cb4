// What the processor and the operating system let a program run. Internal to kernels; dispatch.cc turns it into
// instruction sets.
// Source: Intel SDM vol. 1 chapters 14.3, 15.2-15.4 and 18.3 (detection of AVX, FMA, AVX2, AVX-512, AMX); Linux
// Documentation/arch/x86/xstate.rst (permission to use tiles).
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
  uint32_t leaf7_edx = 0;
  uint32_t leaf7_1_eax = 0;
  uint64_t xcr0 = 0;  // register state that the operating system saves; 0 without OSXSAVE
  bool tiles_granted = false;
};

// Where the processor has tiles, asks the operating system to let this process use them (ARCH_REQ_XCOMP_PERM): once granted, it
// holds for all threads, and costs a thread nothing before it uses a tile.
CpuWords read_cpu_words();

// From the definition to the best. An instruction set counts only if its registers' state is enabled too.
std::vector<Isa> isas_of(const CpuWords& words);

}  // namespace pagoda::kernels
