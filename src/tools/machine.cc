#include "tools/machine.h"

#include <sched.h>

#include <cstdlib>
#include <fstream>

#include "base/cpu.h"
#include "engine/memory_room.h"

namespace pagoda::tools {
namespace fs = std::filesystem;
namespace {

std::string first_line(const fs::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// "model name	: AMD EPYC" -> "AMD EPYC", of the first CPU; counts the "processor" lines.
void read_cpuinfo(const fs::path& path, Machine& machine) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("processor")) ++machine.logical_cpus;
    const size_t colon = line.find(": ");
    if (machine.cpu.empty() && line.starts_with("model name") && colon != std::string::npos)
      machine.cpu = line.substr(colon + 2);
  }
}

int affinity_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::optional<double> quota_of(const fs::path& path) {
  double quota_us = 0;
  double period_us = 0;
  std::ifstream file(path);
  if (file >> quota_us >> period_us && quota_us > 0 && period_us > 0) return quota_us / period_us;
  return std::nullopt;  // no such file, or "max"
}

// "always [madvise] never" -> "madvise".
std::string chosen_word(const std::string& line) {
  const size_t open = line.find('[');
  const size_t close = line.find(']', open);
  return close == std::string::npos ? std::string() : line.substr(open + 1, close - open - 1);
}

// "1024K" -> bytes.
uint64_t cache_bytes(const std::string& text) {
  char* unit = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &unit, 10);
  return *unit == 'K' ? value << 10 : *unit == 'M' ? value << 20 : value;
}

// How many CPUs a list as "0-3,8" names.
int listed_cpus(const std::string& list) {
  int count = 0;
  const char* at = list.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    if (end == at) break;
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    count += static_cast<int>(last - first) + 1;
    at = *end == ',' ? end + 1 : end;
  }
  return count < 1 ? 1 : count;
}

std::vector<CpuCache> read_caches(const fs::path& folder) {
  std::vector<CpuCache> caches;
  for (int i = 0; i < 8; ++i) {
    const fs::path index = folder / ("index" + std::to_string(i));
    const std::string size = first_line(index / "size");
    if (size.empty()) continue;
    if (first_line(index / "type") == "Instruction") continue;
    caches.push_back({std::atoi(first_line(index / "level").c_str()), cache_bytes(size),
                      listed_cpus(first_line(index / "shared_cpu_list"))});
  }
  return caches;
}

uint64_t meminfo_bytes(const fs::path& path, std::string_view wanted) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(wanted)) return std::strtoull(line.c_str() + wanted.size(), nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace

Machine read_machine(const fs::path& root) {
  Machine machine;
  read_cpuinfo(root / "proc/cpuinfo", machine);
  machine.affinity_cpus = affinity_cpus();
  machine.quota_cpus = quota_of(root / "sys/fs/cgroup/cpu.max");
  machine.usable_cores = usable_cores();
  machine.caches = read_caches(root / "sys/devices/system/cpu/cpu0/cache");
  machine.memory_bytes = meminfo_bytes(root / "proc/meminfo", "MemTotal:");
  machine.available_bytes = engine::available_memory_bytes(root);
  if (const auto group = engine::cgroup_memory(root)) machine.limit_bytes = group->limit_bytes;
  machine.huge_pages = chosen_word(first_line(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  return machine;
}

AutoChoice auto_choice() {
  using kernels::Arithmetic;
  using kernels::Isa;
  AutoChoice choice;
  choice.isa = kernels::best_isa();
  choice.arithmetic = kernels::parse_arithmetic("auto", choice.isa).value_or(Arithmetic::kInt8);
  std::string others;
  for (const Isa isa : kernels::supported_isas()) {
    if (isa != choice.isa) others.append(others.empty() ? "" : " and ").append(to_string(isa));
  }
  choice.isa_reason =
      others.empty() ? "the only one that this CPU and system run" : "the best of what runs here, beside " + others;
  choice.arithmetic_reason = choice.isa == Isa::kAmx
                                 ? "AMX multiplies bf16 fastest, and without rounding activations to int8"
                                 : "bf16 is fast only on AMX, which does not run here";
  return choice;
}

}  // namespace pagoda::tools
