#include "tools/planner_json.h"

#include "api/json_text.h"

namespace pagoda::tools {
namespace {

using api::json_string;

template <typename Items, typename ToJson>
std::string list(const Items& items, ToJson&& to_json) {
  std::string out;
  for (const auto& item : items) out.append(out.empty() ? "" : ",").append(to_json(item));
  return "[" + out + "]";
}

std::string model_json(const PlannedModel& model) {
  const weights::ModelConfig& c = model.config;
  return fmt::format(
      "\"model\":{},\"source\":{},\"layers\":{},\"heads\":{},\"kv_heads\":{},\"attention\":\"{}\",\"head_dim\":{},"
      "\"embed_dim\":{},\"ffn_dim\":{},\"vocab_size\":{},\"trained_context_tokens\":{},\"window_tokens\":{},"
      "\"window_layers\":{},\"parameters\":{},\"weight_types\":{}",
      json_string(model.name), json_string(model.source), c.n_layers, c.n_heads, c.n_kv_heads, attention_word(c),
      c.head_dim, c.embed_dim, c.ffn_dim, c.vocab_size, c.context_length, c.sliding_window, c.n_local_layers(),
      model.parameters(), json_string(model.weight_types()));
}

std::string memory_json(const Plan& plan) {
  const auto optional = [](const std::optional<uint64_t>& value) { return value ? fmt::format("{}", *value) : "null"; };
  return fmt::format(
      "\"weight_bytes\":{},\"overhead_bytes\":{},\"memory_bytes\":{},\"kv_memory_bytes\":{},\"short_bytes\":{},"
      "\"kv_disk_bytes\":{},\"context_tokens\":{},\"kv_format\":{},\"serves\":{{\"fits\":{},\"context_tokens\":{},"
      "\"kv_format\":{},\"step_tokens\":{},\"sequences\":{},\"resident_overhead_bytes\":{},\"burst_bytes\":{},"
      "\"traffic_bytes\":{},"
      "\"least_memory_bytes\":{},\"whole_memory_bytes\":{}}}",
      plan.weight_bytes, plan.overhead_bytes, plan.request.memory_bytes, plan.room_bytes, plan.short_bytes,
      optional(plan.request.disk_bytes), plan.request.context_tokens, json_string(plan.request.format),
      plan.fit.is_enough, plan.fit.context_tokens, json_string(plan.fit.kv_format), plan.fit.schedule.step_tokens,
      plan.fit.schedule.max_running, plan.fit.overhead_bytes, plan.fit.burst_bytes, plan.fit.traffic_bytes,
      plan.fit.least_limit_bytes, plan.fit.whole_limit_bytes);
}

std::string format_json(const FormatPlan& f) {
  return fmt::format(
      "{{\"name\":\"{}\",\"note\":{},\"bytes_per_token\":{},\"window_bytes_per_token\":{},"
      "\"sequence_bytes\":{},\"prefill_bytes\":{},\"memory_sequences\":{},\"memory_tokens\":{},\"disk_tokens\":{}}}",
      f.name, json_string(f.note), f.bytes_per_token, f.window_bytes_per_token, f.sequence_bytes, f.prefill_bytes,
      f.sequences, f.memory_tokens, f.disk_tokens ? fmt::format("{}", *f.disk_tokens) : "null");
}

std::string sharing_json(const SharingPlan& s) {
  std::string bytes;
  for (size_t i = 0; i < s.sequence_bytes.size(); ++i)
    bytes += fmt::format("{}\"{}\":{}", i == 0 ? "" : ",", kSharingFormats[i], s.sequence_bytes[i]);
  return fmt::format("{{\"attention\":\"{}\",\"kv_heads\":{},\"is_this_model\":{},\"sequence_bytes\":{{{}}}}}", s.name,
                     s.n_kv_heads, s.is_this, bytes);
}

std::string batch_json(const BatchRow& row) {
  std::string cells;
  for (size_t i = 0; i < row.cells.size(); ++i) {
    cells += fmt::format("{}{{\"batch\":{},\"bytes\":{},\"fits\":{}}}", i == 0 ? "" : ",", kBatches[i],
                         row.cells[i].bytes, row.cells[i].fits);
  }
  return fmt::format("{{\"context_tokens\":{},\"batches\":[{}]}}", row.context_tokens, cells);
}

std::string user_json(const UserPlan& u) {
  return fmt::format("{{\"users\":{},\"largest_context_tokens\":{},\"memory_tokens\":{}}}", u.users, u.context_tokens,
                     u.memory_tokens);
}

std::string rates_json(const PlanReport& report) {
  const auto& rates = report.plan.request.rates;
  if (!rates) return fmt::format("{{\"source\":{}}}", json_string(report.rates_source));
  std::string ops;
  for (size_t i = 0; i < rates->dots.size(); ++i) {
    ops +=
        fmt::format("{}\"{}\":{:.4g}", i == 0 ? "" : ",", to_string(static_cast<kernels::DotKind>(i)), rates->dots[i]);
  }
  return fmt::format("{{\"source\":{},\"arithmetic\":\"{}\",\"bytes_per_s\":{:.4g},\"ops_per_s\":{{{}}}}}",
                     json_string(report.rates_source), to_string(report.plan.request.arithmetic),
                     rates->read_bytes_per_s, ops);
}

std::string bound_json(const BoundPlan& b) {
  return fmt::format("{{\"work\":{},\"tokens_per_s\":{:.6g},\"bound\":\"{}\",\"bytes\":{:.0f},\"operations\":{:.0f}}}",
                     json_string(b.work), b.tokens_per_s, b.bound == Bound::kBandwidth ? "bandwidth" : "operations",
                     b.cost.bytes, b.cost.operations());
}

std::string generation_json(const GenerationCost& g) {
  const auto way = [](const GenerationWay& w) {
    return fmt::format("{{\"textbook\":{:.0f},\"weight_ops\":{:.0f},\"attention_ops\":{:.0f},\"least_s\":{:.4g}}}",
                       w.textbook, w.weight_ops, w.attention_ops, w.seconds);
  };
  return fmt::format("{{\"tokens\":{},\"cached\":{},\"uncached\":{}}}", g.n_tokens, way(g.cached), way(g.uncached));
}

std::string measured_json(const MeasuredGeneration& m) {
  return fmt::format("{{\"tokens\":{},\"cached_s\":{:.4g},\"uncached_s\":{:.4g},\"same_tokens\":{}}}", m.n_tokens,
                     m.cached_s, m.uncached_s, m.same_tokens);
}

std::string figure_json(const VerifiedFigure& f) {
  return fmt::format(
      "{{\"what\":{},\"planned_bytes\":{},\"measured_bytes\":{},\"low_bytes\":{},\"high_bytes\":{},"
      "\"agrees\":{}}}",
      json_string(f.what), f.planned_bytes, f.measured_bytes, f.low_bytes, f.high_bytes, f.agrees());
}

}  // namespace

const char* attention_word(const weights::ModelConfig& config) {
  if (config.n_kv_heads == config.n_heads) return "MHA";
  return config.n_kv_heads == 1 ? "MQA" : "GQA";
}

std::string to_json(const PlanReport& report) {
  const Plan& plan = report.plan;
  return fmt::format(
      "{{{},{},\"formats\":{},\"sharing\":{},\"table\":{},\"users\":{},\"largest_users\":{},\"rates\":{},\"bounds\":{},"
      "\"generation\":{},\"measured\":{},\"verified\":{}}}",
      model_json(plan.model), memory_json(plan), list(plan.formats, format_json), list(plan.sharing, sharing_json),
      list(plan.batches, batch_json), list(plan.users, user_json), plan.largest_count, rates_json(report),
      list(plan.bounds, bound_json), list(report.generation, generation_json), list(report.measured, measured_json),
      list(report.verified, figure_json));
}

}  // namespace pagoda::tools
