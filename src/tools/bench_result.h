// BenchResult: what one run of `bench` found, as plain data; as JSON for machines and later comparisons, and compared with another.
// Units in the names; rates are tokens/s.     Errors: kBadFile with the file and the member for JSON that is no such result.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tools/limits.h"

namespace pagoda::tools {

// Raised when a member changes its meaning; new members do not raise it.
inline constexpr int kBenchSchema = 1;

struct BenchSetup {
  std::string pagoda;  // version
  int64_t unix_s = 0;
  std::string effort;  // "full" or "quick": works of one name have fewer tokens then
  std::string cpu;
  std::string model;  // as served
  uint64_t model_bytes = 0;
  std::string isa;
  std::string arithmetic;
  std::string kv_format;
  int threads = 0;
  int context_tokens = 0;
  double weight_bytes = 0;        // read per token
  double kv_bytes_per_token = 0;  // read per token of context
  double core_share = 1;  // of the time that all threads could have had; far below 1: other programs took the cores
};

struct BenchLine {
  std::string work;
  std::vector<double> runs;  // tokens/s, in order
  double gb_per_s = 0;       // of the median run
  double gops = 0;           // of the median run
  double limit = 0;          // tokens/s
  Bound bound = Bound::kBandwidth;
  double limit_gb_per_s = 0;  // bandwidth measured for this work's working set
  std::string hash;           // equal bits give equal hashes
  std::string hash_of;        // "tokens" (greedy), or "logprobs" (of the 20 likeliest tokens after the prompt)
  bool runs_agree = true;     // every run had this hash
  int preemptions = 0;        // over all runs
  int cached_tokens = 0;      // prompt tokens that the last run did not compute

  double median() const;
  double low() const;
  double high() const;
  // Half of the range, relative to the median; 0 for a single run.
  double spread() const;
};

struct LeftOut {
  std::string work;
  std::string why;
};

struct AccuracyLine {
  std::string arithmetic;
  double nll = 0;         // mean natural-log loss per token of the text
  double difference = 0;  // relative to f32's
  double allowed = 0;     // of the absolute difference
  std::string logits_hash;

  bool within() const { return difference <= allowed && difference >= -allowed; }
};

struct BenchResult {
  BenchSetup setup;
  std::vector<BenchLine> lines;
  std::vector<LeftOut> left_out;
  int accuracy_tokens = 0;
  std::vector<AccuracyLine> accuracy;
};

std::string to_json(const BenchResult& result);
// `name` stands for the file in errors. Members that this version does not know are ignored.
Result<BenchResult> parse_bench_result(std::string_view json, std::string_view name);

// ---- comparison ------------------------------------------------------------------------------------------------------------------

// kNoise: the ranges of the runs overlap.  kUnknown: a side has one run only, so nobody knows its noise.
enum class Verdict : uint8_t { kNoise, kFaster, kSlower, kUnknown };

struct ComparedLine {
  std::string work;
  const BenchLine* before = nullptr;  // null: only the other has it
  const BenchLine* after = nullptr;
  double ratio = 0;  // after / before, of the medians
  Verdict verdict = Verdict::kUnknown;
  // None where they hash different things.
  std::optional<bool> same_bits{};
};

// Lines in the order of `after`, then those only in `before`. Views of both: they must outlive it.
std::vector<ComparedLine> compare(const BenchResult& before, const BenchResult& after);

// "threads 2 and 4": every setting that differs, so that nobody takes it for progress.
std::vector<std::string> differing_settings(const BenchSetup& before, const BenchSetup& after);

}  // namespace pagoda::tools
