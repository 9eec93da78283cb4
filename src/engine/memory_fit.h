// MemoryFit: what a model is served with so that the process stays within a memory limit:
//
//   limit >= weights + overhead + burst + traffic + KV
//   overhead   resident whatever runs: the program, the tokenizer, a step's activations, the tiers' buffers, the prefix index when it is full
//   burst      what many requests at once add: the logits of the rows that sample in one step, and the table of sessions
//   traffic    what clients send and have not read yet (traffic_memory.h)
//
// The first of these that fits is taken: everything as asked; smaller steps; the next KV format; at last, in the smallest of these, as long a
// context as there is room for. Without a limit nothing is cut.
// Pure functions of plain data, shared by the engine and `pagoda plan`.   Units: bytes, tokens.   Errors: as the formats'.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/config.h"
#include "models/blocks.h"
#include "sched/scheduler.h"
#include "weights/gguf.h"
#include "weights/model_config.h"

namespace pagoda::engine {

// A model before it is loaded.
struct FitModel {
  weights::ModelConfig config;
  uint64_t weight_bytes = 0;
  uint64_t tokenizer_bytes = 0;
  // Of a KV format.
  std::function<Result<std::vector<models::AttentionGroup>>(std::string_view format)> groups_of;
  std::vector<std::string> formats;  // to try, the best first: those whose quality the model bears
};
// Of a file's header. `format`: as --kv-format; "auto" tries models::fitting_formats().  The file must outlive the result.
Result<FitModel> fit_model(const weights::Gguf& gguf, std::string_view format);

struct MemoryLimit {
  uint64_t bytes = 0;
  enum class Source : uint8_t { kOption, kCgroup } source = Source::kOption;
};
// --memory, or what the cgroup leaves; none: the machine's memory is the limit, and nobody keeps to it.
std::optional<MemoryLimit> memory_limit(const EngineConfig& config);

struct MemoryFit {
  bool is_enough = true;  // false: not even least_context_tokens of the smallest format; the figures are theirs
  std::string kv_format;
  int context_tokens = 0;
  int wanted_tokens = 0;          // as asked, or trained for
  sched::SchedConfig schedule{};  // rows, sequences and logits of a step
  size_t extent_bytes = 0;
  uint64_t weight_bytes = 0;
  uint64_t overhead_bytes = 0;
  uint64_t burst_bytes = 0;
  uint64_t traffic_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t staging_bytes = 0;    // TierConfig; of overhead
  uint64_t most_disk_bytes = 0;  // that a disk tier of no given size may take, so that its catalogue fits; 0: any
  std::optional<MemoryLimit> limit{};
  uint64_t context_bytes = 0;      // KV of one sequence of wanted_tokens
  uint64_t least_limit_bytes = 0;  // the smallest limit that would do
  uint64_t whole_limit_bytes = 0;  // the smallest where nothing is cut
  int least_context_tokens = 0;

  uint64_t resident_bytes() const { return weight_bytes + overhead_bytes + kv_bytes; }
  // For the log: what is resident; and, where there is a limit, what was chosen and what a larger one would give.
  std::string statement() const;
  std::string choice() const;
  // Why a context that config asks for is cut to served_tokens, for the log; empty if it is not, or none is asked for.
  std::string cut(const EngineConfig& config, int trained_tokens, int served_tokens) const;
  // kResourceExhausted with all of it. Requires !is_enough.
  Error error() const;
};

// `available_bytes`: of the system, for a budget that nobody names.
Result<MemoryFit> fit_memory(const FitModel& model, const EngineConfig& config, std::optional<MemoryLimit> limit,
                             uint64_t available_bytes);

// For the same model in another KV format beside the one that was loaded: the same steps, and K and V of one sequence of config's context.
MemoryFit fit_beside(const MemoryFit& loaded, std::span<const models::AttentionGroup> groups,
                     const EngineConfig& config);

// What overhead and burst may be together with default options: a step's logits are cut to it, but not below 33 rows. The activations of
// models above some 0.5 billion parameters take more themselves.
uint64_t most_overhead_bytes(const weights::ModelConfig& config);

}  // namespace pagoda::engine
