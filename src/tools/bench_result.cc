#include "tools/bench_result.h"

#include <algorithm>

namespace pagoda::tools {
namespace {

const BenchLine* find_line(const BenchResult& result, std::string_view work) {
  const auto at = std::ranges::find(result.lines, work, &BenchLine::work);
  return at == result.lines.end() ? nullptr : &*at;
}

Verdict verdict_of(const BenchLine& before, const BenchLine& after) {
  if (before.runs.size() < 2 || after.runs.size() < 2) return Verdict::kUnknown;
  if (after.low() > before.high()) return Verdict::kFaster;
  if (after.high() < before.low()) return Verdict::kSlower;
  return Verdict::kNoise;
}

ComparedLine compare_lines(const BenchLine* before, const BenchLine* after) {
  ComparedLine line{.work = after != nullptr ? after->work : before->work, .before = before, .after = after};
  if (before == nullptr || after == nullptr) return line;
  if (before->median() > 0) line.ratio = after->median() / before->median();
  line.verdict = verdict_of(*before, *after);
  if (before->hash_of == after->hash_of) line.same_bits = before->hash == after->hash;
  return line;
}

}  // namespace

double BenchLine::median() const {
  if (runs.empty()) return 0;
  std::vector<double> sorted = runs;
  std::ranges::sort(sorted);
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double BenchLine::low() const { return runs.empty() ? 0 : *std::ranges::min_element(runs); }
double BenchLine::high() const { return runs.empty() ? 0 : *std::ranges::max_element(runs); }
double BenchLine::spread() const { return median() > 0 ? (high() - low()) / 2 / median() : 0; }

std::vector<ComparedLine> compare(const BenchResult& before, const BenchResult& after) {
  std::vector<ComparedLine> lines;
  for (const BenchLine& line : after.lines) lines.push_back(compare_lines(find_line(before, line.work), &line));
  for (const BenchLine& line : before.lines) {
    if (find_line(after, line.work) == nullptr) lines.push_back(compare_lines(&line, nullptr));
  }
  return lines;
}

std::vector<std::string> differing_settings(const BenchSetup& before, const BenchSetup& after) {
  std::vector<std::string> differing;
  const auto note = [&](std::string_view name, const auto& a, const auto& b) {
    if (a != b) differing.push_back(fmt::format("{} {} and {}", name, a, b));
  };
  note("pagoda", before.pagoda, after.pagoda);
  note("CPU", before.cpu, after.cpu);
  note("model", before.model, after.model);
  note("model bytes", before.model_bytes, after.model_bytes);
  note("effort", before.effort, after.effort);
  note("isa", before.isa, after.isa);
  note("arithmetic", before.arithmetic, after.arithmetic);
  note("KV format", before.kv_format, after.kv_format);
  note("threads", before.threads, after.threads);
  return differing;
}

}  // namespace pagoda::tools
