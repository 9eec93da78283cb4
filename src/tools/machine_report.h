// MachineReport: everything `doctor --machine` says, as plain data; text and JSON are the command's.
// Cost: two or three seconds, and a buffer of half a gigabyte where that much is free.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "tools/machine.h"
#include "tools/machine_probe.h"

namespace pagoda::tools {

struct BandwidthLine {
  uint64_t bytes = 0;  // working set
  double one_thread = 0;
  double all_threads = 0;  // bytes/s
};

struct PeakLine {
  kernels::Isa isa = kernels::Isa::kRef;
  kernels::DotKind kind = kernels::DotKind::kF32;
  double one_thread = 0;
  double all_threads = 0;  // operations/s
};

struct MachineReport {
  Machine machine;
  AutoChoice choice;
  int threads = 0;
  std::vector<BandwidthLine> bandwidth;  // by size, with the best instruction set's loads
  std::vector<PeakLine> peaks;           // by instruction set; those that run here
  MachineProbe::Clock clock;
};

// `say` is told the share that is done, in [0, 1), and what comes.  Errors: kResourceExhausted.
Result<MachineReport> examine_machine(const std::function<void(double done, std::string_view what)>& say);

}  // namespace pagoda::tools
