#include "tools/planner.h"

#include <algorithm>
#include <map>

#include "engine/memory_plan.h"
#include "models/kv_plan.h"
#include "text/tokenizer.h"

namespace pagoda::tools {
namespace {

using models::AttentionGroup;

constexpr size_t kTokenTextBytes = 8;  // of a public shape's vocabulary, on average

// Pagoda stores 16 bits as bf16: the same bytes.
std::string_view stored_name(std::string_view format) { return format == "f16" ? "bf16" : format; }

// The largest n in [0, most] for which holds(n); holds(0) is taken for granted, and holds is true below and false above one point.
template <typename N, typename Holds>
N largest(N most, Holds&& holds) {
  N low = 0;
  while (low < most) {
    const N middle = most - (most - low) / 2;
    if (holds(middle))
      low = middle;
    else
      most = middle - 1;
  }
  return low;
}

FormatPlan format_plan(const Plan& plan, std::string_view name, std::vector<AttentionGroup> groups) {
  const int n_tokens = plan.request.context_tokens;
  models::KvFootprint footprint = models::footprint(name, groups);
  FormatPlan out;
  out.name = name;
  out.note = std::move(footprint.note);
  out.bytes_per_token = footprint.bytes_per_token;
  out.window_bytes_per_token = footprint.window_bytes_per_token;
  out.sequence_bytes = engine::context_bytes(groups, n_tokens, 0);
  out.prefill_bytes = engine::context_bytes(groups, n_tokens, plan.request.chunk_tokens);
  if (plan.request.disk_bytes) out.disk_tokens = tokens_in(groups, *plan.request.disk_bytes, n_tokens);
  const KvRoom room{std::move(groups), plan.room_bytes, plan.request.chunk_tokens};
  out.sequences = room.largest_count(n_tokens);
  out.memory_tokens = room.tokens(n_tokens);
  return out;
}

Status add_fit(Plan& plan) {
  const PlanRequest& request = plan.request;
  engine::EngineConfig serving = request.serving;
  serving.kv_format = request.format;
  serving.kv_memory_bytes = request.kv_memory_bytes;
  if (!request.kv_memory_bytes) serving.memory_bytes = request.memory_bytes;
  const engine::FitModel model{.config = plan.model.config,
                               .weight_bytes = plan.weight_bytes,
                               .tokenizer_bytes = plan.model.tokenizer_bytes,
                               .groups_of = [&plan](std::string_view format) { return groups_of(plan.model, format); },
                               .formats = models::fitting_formats(request.format)};
  std::optional<engine::MemoryLimit> limit;
  if (serving.memory_bytes) limit = engine::MemoryLimit{*serving.memory_bytes, engine::MemoryLimit::Source::kOption};
  TRY_ASSIGN(plan.fit, engine::fit_memory(model, serving, limit, request.memory_bytes));
  plan.overhead_bytes = plan.fit.overhead_bytes + plan.fit.burst_bytes;
  if (limit) plan.overhead_bytes += plan.fit.traffic_bytes;
  plan.room_bytes = plan.fit.is_enough ? plan.fit.kv_bytes : 0;
  if (!plan.fit.is_enough) plan.short_bytes = plan.fit.least_limit_bytes - limit->bytes;
  return {};
}

Status add_formats(Plan& plan) {
  std::vector<std::string> names = plan_formats();
  std::ranges::rotate(names, names.begin() + 1);  // "auto" last
  for (const std::string& name : names) {
    TRY_ASSIGN(std::vector<AttentionGroup> groups, groups_of(plan.model, name));
    plan.formats.push_back(format_plan(plan, name, std::move(groups)));
  }
  return {};
}

Status add_sharing(Plan& plan) {
  const weights::ModelConfig& config = plan.model.config;
  const int n_heads = config.n_heads;
  const bool is_gqa = config.n_kv_heads > 1 && config.n_kv_heads < n_heads;
  // Where the model has no groups of its own: four query heads to a KV head, or what divides.
  int grouped = is_gqa ? config.n_kv_heads : std::max(2, n_heads / 4);
  while (n_heads % grouped != 0) --grouped;
  std::vector<std::pair<const char*, int>> kinds{{"MHA", n_heads}};
  if (grouped > 1 && grouped < n_heads) kinds.emplace_back("GQA", grouped);
  if (n_heads > 1) kinds.emplace_back("MQA", 1);
  for (const auto& [name, n_kv_heads] : kinds) {
    PlannedModel other{
        .name = {}, .source = {}, .config = config, .k_bias = plan.model.k_bias, .tensors = {}, .tokenizer_bytes = 0};
    other.config.n_kv_heads = n_kv_heads;
    SharingPlan sharing;
    sharing.name = name;
    sharing.n_kv_heads = n_kv_heads;
    sharing.is_this = n_kv_heads == config.n_kv_heads;
    for (const std::string_view format : kSharingFormats) {
      TRY_ASSIGN(const std::vector<AttentionGroup> groups, groups_of(other, format));
      sharing.sequence_bytes.push_back(engine::context_bytes(groups, plan.request.context_tokens, 0));
    }
    plan.sharing.push_back(std::move(sharing));
  }
  return {};
}

// From 512 tokens in doublings, the request's own and the trained context with them.
std::vector<int> table_contexts(const PlanRequest& request, int trained) {
  std::vector<int> contexts{request.context_tokens, trained};
  for (int64_t n = 512; n < trained; n *= 2) contexts.push_back(static_cast<int>(n));
  std::ranges::sort(contexts);
  const auto doubles = std::ranges::unique(contexts);
  contexts.erase(doubles.begin(), doubles.end());
  return contexts;
}

void add_table(Plan& plan, const KvRoom& room) {
  for (const int n_tokens : table_contexts(plan.request, plan.model.config.context_length)) {
    BatchRow row{.context_tokens = n_tokens, .cells = {}};
    for (const int batch : kBatches) {
      const auto n = static_cast<uint64_t>(batch);
      row.cells.push_back({n * engine::context_bytes(room.groups, n_tokens, 0), room.holds(n, n_tokens)});
    }
    plan.batches.push_back(std::move(row));
  }
  std::vector<int> counts{1, 4, 16, 64};
  if (plan.request.users) counts = {*plan.request.users};
  for (const int users : counts) {
    const int held = room.largest_context(static_cast<uint64_t>(users));
    plan.users.push_back({users, held, std::min(held, plan.model.config.context_length)});
  }
  plan.largest_count = room.largest_count(plan.request.context_tokens);
}

Status add_bounds(Plan& plan) {
  if (!plan.request.rates) return {};
  TRY_ASSIGN(const ModelCosts costs, costs_of(plan.model, plan.request.format, plan.request.arithmetic));
  const int context = plan.request.context_tokens;
  const auto add = [&](std::string work, int n_tokens, const StepLoad& load) {
    const StepCost cost = step_cost(costs, load);
    const Limit limit = limit_of(cost, *plan.request.rates);
    plan.bounds.push_back({std::move(work), limit.seconds > 0 ? n_tokens / limit.seconds : 0, limit.bound, cost});
  };
  add("prefill", context, {.streams = {{.context = 0, .n_rows = context}}, .sampled_rows = 1, .shared_tokens = 0});
  for (const int users : {1, plan.request.users.value_or(16)}) {
    if (users == 1 && !plan.bounds.empty() && plan.bounds.back().work == "decode") continue;
    const std::vector<StreamRows> streams(static_cast<size_t>(users), {.context = context - 1, .n_rows = 1});
    add(users == 1 ? "decode" : fmt::format("decode of {}", users), users,
        {.streams = streams, .sampled_rows = users, .shared_tokens = 0});
  }
  return {};
}

}  // namespace

uint64_t PlannedModel::weight_bytes() const {
  uint64_t bytes = 0;
  for (const WeightTensor& tensor : tensors) bytes += tensor.held_bytes();
  return bytes;
}

int64_t PlannedModel::parameters() const {
  int64_t n = 0;
  for (const WeightTensor& tensor : tensors) n += tensor.n_elements();
  return n;
}

std::string PlannedModel::weight_types() const {
  std::map<tensor::DType, uint64_t> bytes;
  for (const WeightTensor& tensor : tensors) {
    if (tensor.n_dims > 1) bytes[tensor.dtype] += tensor.held_bytes();
  }
  std::vector<std::pair<tensor::DType, uint64_t>> sorted(bytes.begin(), bytes.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(), &std::pair<tensor::DType, uint64_t>::second);
  std::string names;
  for (const auto& [type, n] : sorted) names.append(names.empty() ? "" : ", ").append(to_string(type));
  return names;
}

Result<PlannedModel> planned_model(const weights::Gguf& gguf) {
  PlannedModel model;
  TRY_ASSIGN(model.config, weights::read_model_config(gguf));
  TRY_ASSIGN(model.tensors, weight_tensors(gguf));
  model.k_bias = models::k_bias_layers(gguf, model.config);
  TRY_ASSIGN(const engine::FitModel fit, engine::fit_model(gguf, "auto"));
  model.tokenizer_bytes = fit.tokenizer_bytes;
  model.name = model.config.name;
  model.source = gguf.name();
  return model;
}

PlannedModel planned_model(const PublicShape& shape, tensor::DType weight_type) {
  const auto n_tokens = static_cast<size_t>(shape.vocab_size);
  const uint8_t k_bias = shape.extras == PublicShape::Extras::kQkvBias ? 1 : 0;
  return {.name = std::string(shape.slug),
          .source = fmt::format("config.json of {}", shape.source),
          .config = config_of(shape),
          .k_bias = std::vector<uint8_t>(static_cast<size_t>(shape.n_layers), k_bias),
          .tensors = tensors_of(shape, weight_type),
          .tokenizer_bytes = text::Tokenizer::memory_bytes(n_tokens, kTokenTextBytes * n_tokens, n_tokens)};
}

Result<std::vector<AttentionGroup>> groups_of(const PlannedModel& model, std::string_view format) {
  const std::string_view stored = format == "auto" ? std::string_view(model.auto_format) : stored_name(format);
  TRY_ASSIGN(const std::vector<kv::LayerFormat> formats, models::layer_formats(stored, model.k_bias));
  return models::group_layers(model.config, formats);
}

bool KvRoom::holds(uint64_t n_sequences, int n_tokens) const {
  return engine::shared_budget_bytes(groups, n_sequences, n_tokens, chunk_tokens, engine::extent_bytes_of(groups)) <=
         bytes;
}

int KvRoom::largest_context(uint64_t n_sequences) const {
  return largest(kMostTokens, [&](int n_tokens) { return holds(n_sequences, n_tokens); });
}

uint64_t KvRoom::largest_count(int n_tokens) const {
  const uint64_t each = std::max<uint64_t>(1, engine::context_bytes(groups, n_tokens, 0));
  return largest(bytes / each, [&](uint64_t n) { return holds(n, n_tokens); });
}

uint64_t KvRoom::tokens(int n_tokens) const {
  const uint64_t whole = largest_count(n_tokens);
  const int rest = largest(n_tokens, [&](int n) {
    return engine::shared_budget_bytes(groups, whole, n_tokens, chunk_tokens, engine::extent_bytes_of(groups), n) <=
           bytes;
  });
  return whole * static_cast<uint64_t>(n_tokens) + static_cast<uint64_t>(rest);
}

uint64_t tokens_in(std::span<const AttentionGroup> groups, uint64_t bytes, int n_tokens) {
  const uint64_t each = engine::context_bytes(groups, n_tokens, 0);
  const uint64_t whole = bytes / each;
  const int rest =
      largest(n_tokens, [&](int n) { return engine::context_bytes(groups, n, 0) <= bytes - whole * each; });
  return whole * static_cast<uint64_t>(n_tokens) + static_cast<uint64_t>(rest);
}

Result<ModelCosts> costs_of(const PlannedModel& model, std::string_view format, kernels::Arithmetic arithmetic) {
  TRY_ASSIGN(const std::vector<AttentionGroup> groups, groups_of(model, format));
  return model_costs(model.config, groups, model.tensors, arithmetic);
}

std::vector<std::string> plan_formats() {
  std::vector<std::string> names = models::format_names();
  names.insert(names.begin() + 1, "f16");
  return names;
}

Result<Plan> make_plan(PlannedModel model, PlanRequest request) {
  Plan plan;
  plan.model = std::move(model);
  plan.request = std::move(request);
  plan.weight_bytes = plan.model.weight_bytes();
  TRY(add_fit(plan));
  TRY(add_formats(plan));
  TRY(add_sharing(plan));
  TRY_ASSIGN(std::vector<AttentionGroup> groups, groups_of(plan.model, plan.request.format));
  add_table(plan, {std::move(groups), plan.room_bytes, plan.request.chunk_tokens});
  TRY(add_bounds(plan));
  return plan;
}

}  // namespace pagoda::tools
