// BenchWork: the pieces of work that `bench` measures, by name, and what each of them loads a machine with.
//   prefillN   prompt tokens/s of one prompt of N tokens, from its arrival to its first token
//   decode     generated tokens/s of one stream after a short prompt;  decodeN: after N tokens of context
//   batchN     generated tokens/s over N streams together, 128 tokens in and 64 out each, prefill included
//   sharedN    the same with one common prefix of 2,000 tokens, seen once before, and 16 tokens of their own
//   accuracy   loss of each arithmetic on a text beside f32's (bench_accuracy.h); no speed
// N may end in k (thousands). Names and definitions are those of the peers' comparisons, so that figures can be laid side by side.
// Pure.     Units: tokens.     Errors: kInvalidArgument names the work.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tools/limits.h"

namespace pagoda::tools {

enum class WorkKind : uint8_t { kPrefill, kDecode, kBatch, kShared, kAccuracy };

struct BenchWork {
  std::string name;
  WorkKind kind = WorkKind::kPrefill;
  int n_streams = 1;
  int prefix_tokens = 0;  // common to all streams and seen before
  int prompt_tokens = 0;  // of each stream, after the prefix
  int output_tokens = 0;  // of each stream

  int context_tokens() const { return prefix_tokens + prompt_tokens + output_tokens; }
  // Tokens whose rate is measured.
  double counted_tokens() const;
  // KV that all streams hold at their end, a shared prefix once.
  int held_tokens() const { return prefix_tokens + n_streams * (prompt_tokens + output_tokens); }
};

// "prefill512,decode2k".
Result<std::vector<BenchWork>> parse_works(std::string_view list);

enum class Thoroughness : uint8_t { kFull, kQuick };
// Everything, or what takes seconds on a small model.
std::vector<BenchWork> default_works(Thoroughness thoroughness);
// The same work with fewer tokens of output and of shared prefix.
BenchWork shortened(BenchWork work);

// The steps that are measured, as the engine takes them: prompts in chunks of step_tokens rows, each chunk reading the weights again.
std::vector<StepCost> actual_steps(const ModelCosts& costs, const BenchWork& work, int step_tokens);
// The steps of the least possible time: each prompt as one step, a shared prefix computed and read once.
std::vector<StepCost> ideal_steps(const ModelCosts& costs, const BenchWork& work);
// Bytes that are read over and over: of the last step.
double working_set_bytes(const ModelCosts& costs, const BenchWork& work);

}  // namespace pagoda::tools
