#include "tools/machine_report.h"

#include <algorithm>

namespace pagoda::tools {
namespace {

using kernels::DotKind;
using kernels::Isa;
using Threads = MachineProbe::Threads;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSizes[] = {kMiB, 4 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB, 128 * kMiB, 256 * kMiB, 512 * kMiB};
constexpr double kReadSeconds = 0.04;
constexpr double kDotSeconds = 0.02;
constexpr double kClockSeconds = 0.2;

// Of half the memory that is free.
uint64_t largest_size(uint64_t available_bytes) {
  uint64_t largest = kSizes[0];
  for (const uint64_t size : kSizes) {
    if (size <= available_bytes / 2) largest = size;
  }
  return largest;
}

std::vector<PeakLine> loops_here() {
  std::vector<PeakLine> lines;
  for (const Isa isa : kernels::supported_isas()) {
    void (*last)(int64_t) = nullptr;
    for (int i = 0; i < kernels::kDotKinds; ++i) {
      const auto kind = static_cast<DotKind>(i);
      const auto run = kernels::dot_loop(isa, kind).run;
      if (run == nullptr) continue;
      if (run == last)
        lines.back().kind = kind;  // VNNI: one loop for codes of any width, named by the widest
      else
        lines.push_back({.isa = isa, .kind = kind});
      last = run;
    }
  }
  return lines;
}

}  // namespace

Result<MachineReport> examine_machine(const std::function<void(double done, std::string_view what)>& say) {
  MachineReport report;
  say(0, "asking the system");
  report.machine = read_machine();
  report.choice = auto_choice();
  report.threads = report.machine.usable_cores;
  report.peaks = loops_here();
  const uint64_t largest = largest_size(report.machine.available_bytes);
  TRY_ASSIGN(MachineProbe probe, MachineProbe::make(report.threads, largest));
  const double n_pieces = static_cast<double>(std::size(kSizes) + report.peaks.size()) + 1;
  double done = 0;
  for (const uint64_t size : kSizes) {
    if (size > largest) continue;
    say(done++ / n_pieces, fmt::format("reading {} MiB", size / kMiB));
    report.bandwidth.push_back({size, probe.read_rate(report.choice.isa, size, Threads::kOne, kReadSeconds),
                                probe.read_rate(report.choice.isa, size, Threads::kAll, kReadSeconds)});
  }
  for (PeakLine& line : report.peaks) {
    say(done++ / n_pieces, fmt::format("{} products on {}", to_string(line.kind), to_string(line.isa)));
    line.one_thread = probe.dot_rate(line.isa, line.kind, Threads::kOne, kDotSeconds);
    line.all_threads = probe.dot_rate(line.isa, line.kind, Threads::kAll, kDotSeconds);
  }
  say(done / n_pieces, "the clock under load");
  report.clock = probe.clock(report.choice.isa, kClockSeconds);
  return report;
}

}  // namespace pagoda::tools
