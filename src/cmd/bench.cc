#include "tools/bench_run.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "cmd/commands.h"
#include "cmd/progress.h"
#include "cmd/read_file.h"
#include "cmd/version.h"

namespace pagoda::cmd {
namespace {

using tools::BenchLine;
using tools::BenchResult;
using tools::Bound;
using tools::Verdict;

constexpr int kRepeats = 3;
constexpr int kQuickRepeats = 2;
constexpr int kAccuracyTokens = 512;
constexpr int kQuickAccuracyTokens = 128;
constexpr double kQuietShare = 0.8;  // threads also sleep a little between steps
constexpr double kMiB = 1024.0 * 1024.0;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

Status write_text(const std::string& path, const std::string& text) {
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0)
    return fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
  return {};
}

Result<BenchResult> read_result(const std::string& path) {
  TRY_ASSIGN(const std::string text, read_text(path));
  return tools::parse_bench_result(text, path);
}

Result<tools::BenchPlan> plan_of(const Options& options) {
  tools::BenchPlan plan;
  const auto thoroughness = options.quick ? tools::Thoroughness::kQuick : tools::Thoroughness::kFull;
  plan.works = tools::default_works(thoroughness);
  if (!options.works.empty()) {
    auto works = tools::parse_works(options.works);
    if (!works) return fail(Error{works.error().code, works.error().message, "--work"});
    plan.works = std::move(*works);
  }
  if (options.quick) std::ranges::transform(plan.works, plan.works.begin(), tools::shortened);
  plan.repeats = options.repeats > 0 ? options.repeats : options.quick ? kQuickRepeats : kRepeats;
  plan.accuracy_tokens = options.quick ? kQuickAccuracyTokens : kAccuracyTokens;
  return plan;
}

Result<BenchResult> measure(const Options& options) {
  TRY_ASSIGN(const tools::BenchPlan plan, plan_of(options));
  TRY_ASSIGN(const engine::EngineConfig config, probed_config(options));
  ProgressBar bar;
  TRY_ASSIGN(BenchResult result,
             tools::run_bench(config, plan, [&](double done, std::string_view what) { bar.show(done, what); }));
  result.setup.pagoda = kVersion;
  result.setup.unix_s = unix_seconds();
  result.setup.effort = options.quick ? "quick" : "full";
  return result;
}

// ---- tables --------------------------------------------------------------------------------------------------------------------

// 1,234 or 12.3: three digits at least.
std::string rate_text(double rate) { return rate >= 100 ? fmt::format("{:.0f}", rate) : fmt::format("{:.1f}", rate); }

void print_setup(const tools::BenchSetup& s) {
  std::printf("%s on %s\n", s.model.c_str(), s.cpu.empty() ? "an unnamed CPU" : s.cpu.c_str());
  std::printf(
      "%d thread%s, %s, %s arithmetic, KV %s, context %d; a token reads %.1f MiB of weights and %.2f KiB per "
      "token of context\n\n",
      s.threads, s.threads == 1 ? "" : "s", s.isa.c_str(), s.arithmetic.c_str(), s.kv_format.c_str(), s.context_tokens,
      s.weight_bytes / kMiB, s.kv_bytes_per_token / 1024);
}

void print_line(const BenchLine& line) {
  const double share = line.limit > 0 ? 100 * line.median() / line.limit : 0;
  std::printf("%-12s %9s %7s %8.1f %8.0f %9s %5.0f %%  %-10s %s%s%s\n", line.work.c_str(),
              rate_text(line.median()).c_str(),
              line.runs.size() > 1 ? fmt::format("{:.1f} %", 100 * line.spread()).c_str() : "-", line.gb_per_s,
              line.gops, rate_text(line.limit).c_str(), share,
              line.bound == Bound::kBandwidth ? fmt::format("{:.0f} GB/s", line.limit_gb_per_s).c_str() : "operations",
              line.hash.c_str(), line.hash_of == "logprobs" ? " L" : " T", line.runs_agree ? "" : " runs differ!");
}

void print_accuracy(const BenchResult& result) {
  if (result.accuracy.empty()) return;
  std::printf("\nLoss per token over %d tokens of prose, beside f32 with the same KV format:\n",
              result.accuracy_tokens);
  for (const tools::AccuracyLine& line : result.accuracy) {
    const std::string difference = line.allowed > 0
                                       ? fmt::format("{:+.3f} % (at most {:.1f} %{})", 100 * line.difference,
                                                     100 * line.allowed, line.within() ? "" : ": TOO MUCH")
                                       : std::string("the reference");
    std::printf("  %-5s %.5f  logits %s  %s\n", line.arithmetic.c_str(), line.nll, line.logits_hash.c_str(),
                difference.c_str());
  }
}

void print_result(const BenchResult& result) {
  print_setup(result.setup);
  std::printf("%-12s %9s %7s %8s %8s %9s %7s  %-10s %s\n", "work", "tok/s", "+-", "GB/s", "Gops", "limit", "of it",
              "limited by", "hash");
  int preemptions = 0;
  for (const BenchLine& line : result.lines) {
    print_line(line);
    preemptions += line.preemptions;
  }
  for (const tools::LeftOut& left : result.left_out)
    std::printf("%-12s left out: %s\n", left.work.c_str(), left.why.c_str());
  if (!result.lines.empty()) {
    std::printf(
        "\ntok/s: median of the runs; +-: half their range. limit: bandwidth for the work's own bytes, or peak of the "
        "kernels' instructions, as measured\nin this run. hash: equal bits give equal ones; T over the tokens "
        "(greedy), L over the 20 likeliest log-probabilities after the prompt.\n");
  }
  if (result.setup.core_share < kQuietShare) {
    std::printf(
        "Other programs ran: the threads had %.0f %% of their cores' time, so tok/s are lower than they could be.\n",
        100 * result.setup.core_share);
  }
  if (preemptions > 0)
    std::printf("KV memory was short: %d times a stream had to give way and start again (--kv-memory).\n", preemptions);
  print_accuracy(result);
}

const char* word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNoise:
      return "within noise";
    case Verdict::kFaster:
      return "faster";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kUnknown:
      return "noise unknown: one run";
  }
  return "";
}

std::string side_text(const BenchLine* line) {
  if (line == nullptr) return "-";
  return fmt::format("{} +-{:.1f} %", rate_text(line->median()), 100 * line->spread());
}

void print_comparison(const BenchResult& before, const BenchResult& after, const std::string& file) {
  std::printf("\nBefore (%s) and now:\n", file.c_str());
  for (const std::string& difference : tools::differing_settings(before.setup, after.setup))
    std::printf("  differs: %s\n", difference.c_str());
  std::printf("%-12s %18s %18s %7s  %-24s %s\n", "work", "before tok/s", "now tok/s", "ratio", "", "bits");
  for (const tools::ComparedLine& line : tools::compare(before, after)) {
    const bool both = line.before != nullptr && line.after != nullptr;
    std::printf("%-12s %18s %18s %7s  %-24s %s\n", line.work.c_str(), side_text(line.before).c_str(),
                side_text(line.after).c_str(), both ? fmt::format("{:.3f}", line.ratio).c_str() : "-",
                both ? word_of(line.verdict) : "only on one side",
                !line.same_bits   ? ""
                : *line.same_bits ? "same"
                                  : "other");
  }
  std::printf("faster, slower: the ranges of the runs do not overlap.\n");
}

}  // namespace

Status bench(const Options& options) {
  std::optional<BenchResult> before;
  if (!options.compare_file.empty()) {
    TRY_ASSIGN(before, read_result(options.compare_file));  // before minutes are spent
  }
  TRY_ASSIGN(const BenchResult result,
             options.model.ends_with(".json") ? read_result(options.model) : measure(options));
  const std::string json = tools::to_json(result);
  if (options.json_file == "-") {
    std::fputs(json.c_str(), stdout);
    return {};
  }
  if (!options.json_file.empty()) TRY(write_text(options.json_file, json));
  print_result(result);
  if (before) print_comparison(*before, result, options.compare_file);
  if (!result.lines.empty() || !result.accuracy.empty() || result.left_out.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "nothing was measured: {}: {}", result.left_out.front().work,
              result.left_out.front().why);
}

}  // namespace pagoda::cmd
