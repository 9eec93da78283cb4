// Machine: what the system says about the CPU, memory and limits of this process. Nothing here is measured (machine_probe.h).
// Units: bytes, logical CPUs.     Errors: none; what a system does not say is empty, 0 or none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace pagoda::tools {

struct CpuCache {
  int level = 0;
  uint64_t bytes = 0;  // of one such cache; data or unified
  int shared_by = 1;   // logical CPUs that share it
};

struct Machine {
  std::string cpu;  // "AMD EPYC"
  int logical_cpus = 0;
  int affinity_cpus = 0;             // that this process may run on
  std::optional<double> quota_cpus;  // of the cgroup; none: no quota
  int usable_cores = 0;              // what -t is by default
  std::vector<CpuCache> caches;      // of the first CPU
  uint64_t memory_bytes = 0;
  uint64_t available_bytes = 0;         // what the system would give now, the cgroup's limit counted in
  std::optional<uint64_t> limit_bytes;  // of the cgroup; none: no limit
  std::string huge_pages;  // transparent huge pages: "always", "madvise", "never"; empty: the system has none
};

// `root` stands for "/": tests have files of their own there.
Machine read_machine(const std::filesystem::path& root = "/");

// What `auto` is here, and why: a pure function of CPUID and the options, never of a measurement.
struct AutoChoice {
  kernels::Isa isa = kernels::Isa::kRef;
  kernels::Arithmetic arithmetic = kernels::Arithmetic::kInt8;
  std::string isa_reason;
  std::string arithmetic_reason;
};
AutoChoice auto_choice();

}  // namespace pagoda::tools
