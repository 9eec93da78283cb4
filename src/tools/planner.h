// Planner: what a model takes and what fits, before anything is loaded: from a file's header or a public shape (planner_shapes.h).
//   memory   = weights + overhead + KV
//   KV bytes = 2 * layers * kv_heads * head_dim * tokens * bytes per element, scales added, in blocks of 32 tokens
// Real formats are laid out by kv/layout.h, budgets are engine/memory_plan.h's, what fits engine/memory_fit.h's and bounds limits.h's, so that plan and
// engine say the same.
// A window group holds its window and one block; while it is prefilled, a chunk more.
// Pure functions of plain data.     Units: bytes, tokens, seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/memory_fit.h"
#include "models/blocks.h"
#include "tools/limits.h"
#include "tools/planner_shapes.h"

namespace pagoda::tools {

struct PlannedModel {
  std::string name;
  std::string source;  // the file's path, or whose config.json
  weights::ModelConfig config;
  std::vector<uint8_t> k_bias;  // [n_layers] 1: the layer's K has a bias
  std::vector<WeightTensor> tensors;
  uint64_t tokenizer_bytes = 0;
  std::string auto_format =
      "auto";  // what the engine takes for "auto": the rule, or a probe's table (engine/kv_probe.h)

  uint64_t weight_bytes() const;     // as held in memory
  int64_t parameters() const;        // each weight once
  std::string weight_types() const;  // of the matrices, most bytes first: "Q4_1, Q8_0"
};

// Reads the header only.  Errors: as weights::read_model_config and weight_tensors.
Result<PlannedModel> planned_model(const weights::Gguf& gguf);
PlannedModel planned_model(const PublicShape& shape, tensor::DType weight_type);

// The groups of a model in a format of models/kv_plan.h, or in "f16".
// Errors: kInvalidArgument for another name.
Result<std::vector<models::AttentionGroup>> groups_of(const PlannedModel& model, std::string_view format);

// ---- what fits -------------------------------------------------------------------------------------------------------------------

inline constexpr int kMostTokens = 1 << 24;  // of a context that is planned for

struct KvRoom {
  std::vector<models::AttentionGroup> groups;
  uint64_t bytes = 0;      // for K and V
  int chunk_tokens = 256;  // rows of one prefill chunk at most
  int trained_tokens = 0;  // no sequence is longer

  bool holds(uint64_t n_sequences, int n_tokens) const;  // as a pool with extents holds them
  int largest_context(uint64_t n_sequences) const;       // 0: not even a token
  uint64_t largest_count(int n_tokens) const;            // sequences of n_tokens
  uint64_t tokens(int n_tokens) const;  // of sequences of n_tokens, the last one as long as the rest allows
};

// The same of a disk, which has no extents: of `bytes`, to the byte.
uint64_t tokens_in(std::span<const models::AttentionGroup> groups, uint64_t bytes, int n_tokens);

// ---- the plan --------------------------------------------------------------------------------------------------------------------

struct PlanRequest {
  int context_tokens = 2048;
  int chunk_tokens = 256;
  uint64_t memory_bytes = 0;                     // weights, overhead and KV
  std::optional<uint64_t> kv_memory_bytes = {};  // K and V alone, whatever memory_bytes says
  engine::EngineConfig serving = {};             // what else it would be served with
  std::optional<uint64_t> disk_bytes = {};       // of the tier below memory
  std::optional<int> users = {};                 // none: some counts
  std::string format = "auto";                   // what tables and bounds are of
  kernels::Arithmetic arithmetic = kernels::Arithmetic::kInt8;
  std::optional<MachineRates> rates = {};  // none: no bounds
};

struct FormatPlan {
  std::string name;
  std::string note;                     // empty: stored as named
  uint64_t bytes_per_token = 0;         // of the layers that see everything
  uint64_t window_bytes_per_token = 0;  // of the window layers: for the window only
  uint64_t sequence_bytes = 0;          // of one at context_tokens
  uint64_t prefill_bytes = 0;           // of one while it is prefilled
  uint64_t sequences = 0;               // of context_tokens, that memory holds
  uint64_t memory_tokens = 0;           // of these and a shorter one
  std::optional<uint64_t> disk_tokens;
};

// The same model with other KV heads.
struct SharingPlan {
  std::string name;  // "MHA", "GQA", "MQA"
  int n_kv_heads = 0;
  bool is_this = false;
  std::vector<uint64_t> sequence_bytes;  // by SharingPlan formats: f16, q8
};
inline constexpr std::string_view kSharingFormats[] = {"f16", "q8"};

struct BatchCell {
  uint64_t bytes = 0;
  bool fits = false;
};
struct BatchRow {
  int context_tokens = 0;
  std::vector<BatchCell> cells;  // by kBatches
};
inline constexpr int kBatches[] = {1, 2, 4, 8, 16, 32, 64};

struct UserPlan {
  int users = 0;
  int memory_tokens = 0;   // of each, that memory holds, at most kMostTokens
  int context_tokens = 0;  // the same, but no more than the model was trained for
};

struct BoundPlan {
  std::string work;  // "prefill", "decode", "decode of 16"
  double tokens_per_s = 0;
  Bound bound = Bound::kBandwidth;
  StepCost cost;
};

struct Plan {
  PlannedModel model;
  PlanRequest request;
  uint64_t weight_bytes = 0;
  engine::MemoryFit fit;            // what `pagoda serve` would choose
  uint64_t overhead_bytes = 0;      // the fit's resident overhead, burst and, within a limit, traffic
  uint64_t room_bytes = 0;          // for K and V
  uint64_t short_bytes = 0;         // what memory lacks of the smallest that would do; then there is no room
  std::vector<FormatPlan> formats;  // f16, bf16, k16v8, q8, k16v4, k8v4, q4, and auto last
  std::vector<SharingPlan> sharing;
  std::vector<BatchRow> batches;  // of request.format
  std::vector<UserPlan> users;
  uint64_t largest_count = 0;     // sequences of context_tokens
  std::vector<BoundPlan> bounds;  // empty without rates
};

// What may be planned for: "auto", f16, and what the engine stores.
std::vector<std::string> plan_formats();

// A context may be longer than the model was trained for: memory is arithmetic.  Errors: kInvalidArgument for an unknown format.
// Requires 0 < context_tokens <= kMostTokens.
Result<Plan> make_plan(PlannedModel model, PlanRequest request);

// What a step costs in the request's format and arithmetic.
Result<ModelCosts> costs_of(const PlannedModel& model, std::string_view format, kernels::Arithmetic arithmetic);

}  // namespace pagoda::tools
