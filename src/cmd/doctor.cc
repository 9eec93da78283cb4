#include <algorithm>
#include <cstdio>
#include <optional>

#include "api/json_text.h"
#include "base/named.h"
#include "cmd/commands.h"
#include "cmd/progress.h"
#include "http/client.h"
#include "serve/diagnosing.h"
#include "tools/machine_report.h"

namespace pagoda::cmd {
namespace {

using kernels::DotKind;
using kernels::Isa;
using tools::MachineReport;

constexpr double kGiga = 1e9;
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGiB = 1024.0 * kMiB;

void line(const char* label, const std::string& text) { std::printf("%-13s %s\n", label, text.c_str()); }
void note(const std::string& text) { std::printf("              %s\n", text.c_str()); }

std::string gib_text(uint64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB); }

std::string caches_text(const tools::Machine& machine) {
  std::string text;
  for (const tools::CpuCache& cache : machine.caches) {
    const double mib = static_cast<double>(cache.bytes) / kMiB;
    text += fmt::format("{}L{} {}{}", text.empty() ? "" : ", ", cache.level,
                        mib < 1 ? fmt::format("{:.0f} KiB", mib * 1024) : fmt::format("{:.0f} MiB", mib),
                        cache.shared_by > 1 ? fmt::format(" for {} CPUs", cache.shared_by) : "");
  }
  return text.empty() ? "not told" : text;
}

std::string isas_text() {
  std::string text;
  for (const Isa isa : kernels::supported_isas()) text.append(text.empty() ? "" : ", ").append(to_string(isa));
  return text;
}

const char* huge_pages_meaning(const std::string& mode) {
  if (mode == "always" || mode == "madvise")
    return "weights and cache get 2 MiB pages: fewer misses of the address cache";
  if (mode == "never")
    return "4 KiB pages only: reading large models is slower; \"madvise\" would let Pagoda ask for 2 MiB";
  return "this system has no transparent huge pages: reading large models is slower";
}

// What one kind of products is made of.
std::string kind_text(Isa isa, DotKind kind) {
  switch (kind) {
    case DotKind::kF32:
      return "f32, fma";
    case DotKind::kBf16:
      return "bf16, tiles";
    case DotKind::kInt8:
      return isa == Isa::kAvx2 ? "int8 x 8-bit codes, maddubs" : isa == Isa::kRef ? "int8" : "int8, vnni";
    case DotKind::kInt15:
      return isa == Isa::kAvx2 ? "15-bit x int8, madd" : isa == Isa::kRef ? "int8 to int15" : "15-bit x int8, vnni";
    case DotKind::kInt4:
    case DotKind::kInt5:
    case DotKind::kInt6:
      return fmt::format("int8 x {}-bit codes, maddubs", to_string(kind).back());
  }
  return {};
}

// ---- text ------------------------------------------------------------------------------------------------------------------------

void print_facts(const MachineReport& report) {
  const tools::Machine& m = report.machine;
  line("CPU", m.cpu.empty() ? "not told" : m.cpu);
  line("cores", fmt::format("{} logical CPUs, {} in this process's affinity, cgroup quota {}: {} thread{} by default",
                            m.logical_cpus, m.affinity_cpus,
                            m.quota_cpus ? fmt::format("of {:.2f} CPUs", *m.quota_cpus) : "none", m.usable_cores,
                            m.usable_cores == 1 ? "" : "s"));
  note("compute threads spin inside a step, so more of them than cores only slows a step down");
  line("caches", caches_text(m));
  line("memory", fmt::format("{}, {} available, cgroup limit {}", gib_text(m.memory_bytes), gib_text(m.available_bytes),
                             m.limit_bytes ? gib_text(*m.limit_bytes) : "none"));
  note(fmt::format("--kv-memory auto takes a quarter of what is available: at most {} beside a model",
                   gib_text(m.available_bytes / 4)));
  line("huge pages", m.huge_pages.empty() ? "none" : m.huge_pages);
  note(huge_pages_meaning(m.huge_pages));
}

void print_choice(const MachineReport& report) {
  line("instructions", isas_text());
  line("--isa auto", fmt::format("{}: {}", to_string(report.choice.isa), report.choice.isa_reason));
  line("--arithmetic",
       fmt::format("auto is {}: {}", to_string(report.choice.arithmetic), report.choice.arithmetic_reason));
  note("auto follows from CPU and options alone; what is measured below never changes an answer");
}

void print_bandwidth(const MachineReport& report) {
  std::printf("\nReading memory, GB/s     1 thread   %d threads\n", report.threads);
  for (const tools::BandwidthLine& b : report.bandwidth) {
    std::printf("  %4.0f MiB               %8.1f     %8.1f\n", static_cast<double>(b.bytes) / kMiB,
                b.one_thread / kGiga, b.all_threads / kGiga);
  }
  const tools::BandwidthLine& last = report.bandwidth.back();
  const double bytes = static_cast<double>(last.bytes);
  note(fmt::format("a model that reads {:.0f} MiB per token generates at most {:.0f} tok/s in one stream here",
                   bytes / kMiB, last.all_threads / bytes));
}

void print_peaks(const MachineReport& report) {
  std::printf("\nProducts, 10^9 operations/s          1 thread   %d threads\n", report.threads);
  for (const tools::PeakLine& p : report.peaks) {
    std::printf("  %-6s %-26s %9.1f     %8.1f\n", std::string(to_string(p.isa)).c_str(),
                kind_text(p.isa, p.kind).c_str(), p.one_thread / kGiga, p.all_threads / kGiga);
  }
  note("prompts are computed at most at this speed; a weight takes two operations per token");
}

void print_clock(const MachineReport& report) {
  const tools::MachineProbe::Clock& c = report.clock;
  std::printf("\n");
  line("clock", fmt::format("{:.2f} GHz alone, {:.2f} GHz right after {} code, {}", c.alone / kGiga,
                            c.after_vectors / kGiga, to_string(report.choice.isa),
                            c.beside_vectors
                                ? fmt::format("{:.2f} GHz while the other threads run it", *c.beside_vectors / kGiga)
                                : std::string("no other threads")));
  const double least = std::min(c.after_vectors, c.beside_vectors.value_or(c.after_vectors));
  note(least < 0.93 * c.alone ? "the clock falls under vector load, or neighbours share the cores"
                              : "the clock holds under vector load");
  line("AMX", fmt::format("self test against the reference: {}", kernels::to_string(kernels::amx_self_test())));
}

// ---- JSON ------------------------------------------------------------------------------------------------------------------------

template <typename Items, typename ToJson>
std::string list_json(const Items& items, ToJson&& to_json) {
  std::string out;
  for (const auto& item : items) out.append(out.empty() ? "" : ",").append(to_json(item));
  return "[" + out + "]";
}

std::string optional_json(const auto& value) { return value ? fmt::format("{}", *value) : std::string("null"); }

std::string machine_json(const tools::Machine& m) {
  const std::string caches = list_json(m.caches, [](const tools::CpuCache& cache) {
    return fmt::format("{{\"level\":{},\"bytes\":{},\"shared_by\":{}}}", cache.level, cache.bytes, cache.shared_by);
  });
  return fmt::format(
      "\"cpu\":{},\"logical_cpus\":{},\"affinity_cpus\":{},\"quota_cpus\":{},\"usable_cores\":{},\"caches\":{},"
      "\"memory_bytes\":{},\"available_bytes\":{},\"limit_bytes\":{},\"huge_pages\":{}",
      api::json_string(m.cpu), m.logical_cpus, m.affinity_cpus, optional_json(m.quota_cpus), m.usable_cores, caches,
      m.memory_bytes, m.available_bytes, optional_json(m.limit_bytes), api::json_string(m.huge_pages));
}

std::string report_json(const MachineReport& r) {
  const std::string isas =
      list_json(kernels::supported_isas(), [](Isa isa) { return api::json_string(to_string(isa)); });
  const std::string bandwidth = list_json(r.bandwidth, [](const tools::BandwidthLine& b) {
    return fmt::format("{{\"bytes\":{},\"one_thread_bytes_per_s\":{:.4g},\"all_threads_bytes_per_s\":{:.4g}}}", b.bytes,
                       b.one_thread, b.all_threads);
  });
  const std::string peaks = list_json(r.peaks, [](const tools::PeakLine& p) {
    return fmt::format(
        "{{\"isa\":\"{}\",\"kind\":\"{}\",\"one_thread_ops_per_s\":{:.4g},\"all_threads_ops_per_s\":{:.4g}}}",
        to_string(p.isa), to_string(p.kind), p.one_thread, p.all_threads);
  });
  return fmt::format(
      "{{{},\"isas\":{},\"auto\":{{\"isa\":\"{}\",\"isa_reason\":{},\"arithmetic\":\"{}\",\"arithmetic_reason\":{}}},"
      "\"threads\":{},\"bandwidth\":{},\"peaks\":{},\"clock_hz\":{{\"alone\":{:.4g},\"after_vectors\":{:.4g},"
      "\"beside_vectors\":{}}},\"amx_self_test\":\"{}\"}}",
      machine_json(r.machine), isas, to_string(r.choice.isa), api::json_string(r.choice.isa_reason),
      to_string(r.choice.arithmetic), api::json_string(r.choice.arithmetic_reason), r.threads, bandwidth, peaks,
      r.clock.alone, r.clock.after_vectors,
      r.clock.beside_vectors ? fmt::format("{:.4g}", *r.clock.beside_vectors) : std::string("null"),
      kernels::to_string(kernels::amx_self_test()));
}

Status examine_server(const Options& options) {
  TRY_ASSIGN(const http::ServerUrl url, named("--server", http::parse_server_url(options.server)));
  std::vector<http::Header> headers;
  if (const std::string key = api_key_of(options); !key.empty()) headers.push_back({"Authorization", "Bearer " + key});
  TRY_ASSIGN(const http::Answer answer, named("--server", http::get(url, "/v1/diagnosis", headers)));
  if (answer.status == 401 || answer.status == 403) {
    return fail(
        Error{ErrorCode::kForbidden, "the server wants an admin's key: --api-key, or PAGODA_API_KEY", "--server"});
  }
  const std::optional<std::string> text = serve::diagnosis_text(answer.body);
  if (answer.status != 200 || !text) {
    return fail(Error{ErrorCode::kIo,
                      fmt::format("{} answers /v1/diagnosis with status {}: is it a Pagoda server of this version?",
                                  options.server, answer.status),
                      "--server"});
  }
  std::printf("%s%s", options.json ? answer.body.c_str() : text->c_str(), options.json ? "\n" : "");
  return {};
}

}  // namespace

Status doctor(const Options& options) {
  if (!options.server.empty()) return examine_server(options);
  if (!options.machine) {
    return fail(Error{ErrorCode::kInvalidArgument,
                      "say what to examine: pagoda doctor --machine measures this machine, in some seconds; pagoda "
                      "doctor --server URL asks a server what holds it back",
                      "--machine"});
  }
  std::optional<MachineReport> report;
  {
    ProgressBar bar;
    TRY_ASSIGN(report, tools::examine_machine([&](double done, std::string_view what) { bar.show(done, what); }));
  }
  if (options.json) {
    std::printf("%s\n", report_json(*report).c_str());
    return {};
  }
  print_facts(*report);
  print_choice(*report);
  print_bandwidth(*report);
  print_peaks(*report);
  print_clock(*report);
  return {};
}

}  // namespace pagoda::cmd
