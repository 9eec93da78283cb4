#include <algorithm>
#include <cstdio>
#include <optional>

#include "api/json_text.h"
#include "cmd/commands.h"
#include "cmd/model_path.h"
#include "cmd/progress.h"
#include "engine/kv_probe.h"
#include "engine/memory_plan.h"
#include "engine/served_model.h"
#include "models/kv_plan.h"
#include "tools/kv_probing.h"
#include "weights/model_report.h"

namespace pagoda::cmd {
namespace {

using weights::ModelConfig;
using weights::ModelReport;

const char* attention_word(const ModelConfig& c) {
  if (c.n_kv_heads == c.n_heads) return "MHA";
  return c.n_kv_heads == 1 ? "MQA" : "GQA";
}

std::string size_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string count_text(int64_t n) {
  const auto value = static_cast<double>(n);
  return n >= 1'000'000'000 ? fmt::format("{:.2f} B", value / 1e9) : fmt::format("{:.1f} M", value / 1e6);
}

// What only an attempt shows: a tokenizer or a template that this build does not know.
void try_text(const weights::Gguf& gguf, const std::filesystem::path& path, ModelReport& report) {
  if (!report.tokenizer) return;
  engine::EngineConfig config;
  config.model_path = path;
  const auto served = engine::ServedModel::make(gguf, config);
  if (!served)
    report.unsupported.push_back({"tokenizer", served.error().to_string()});
  else if (report.tokenizer->chat_template_bytes > 0 && !served->chat_template) {
    report.unsupported.push_back({"chat template", served->chat_template.error().to_string()});
  }
}

void line(const char* label, const std::string& text) { std::printf("%-15s %s\n", label, text.c_str()); }

void print_config(const ModelReport& report) {
  const ModelConfig& c = *report.config;
  line("context", fmt::format("{} tokens", c.context_length));
  line("layers", fmt::format("{} of {} wide, MLP {}, vocabulary {}", c.n_layers, c.embed_dim, c.ffn_dim, c.vocab_size));
  line("attention",
       fmt::format("{}: {} heads, {} KV heads, head_dim {}", attention_word(c), c.n_heads, c.n_kv_heads, c.head_dim));
  line("window", c.sliding_window == 0
                     ? std::string("none")
                     : fmt::format("{} tokens in {} of {} layers", c.sliding_window, c.n_local_layers(), c.n_layers));
  line("rope", fmt::format("base {}, scaling {}", c.rope.freq_base, to_string(c.rope.scaling)));
}

// What a value of --kv-format gives on this model.
struct FormatCost {
  models::KvFootprint footprint;
  uint64_t context_bytes = 0;  // of one sequence as long as the model was trained for
};

// Every value of --kv-format, and what `auto` takes.
struct KvFormats {
  std::vector<FormatCost> costs;  // auto first
  std::string table;
  std::string arithmetic;
  std::optional<engine::FoundKvProbe> found;  // none: the static rule
  std::filesystem::path own_file;             // of a probe that was made here
};

Result<std::vector<FormatCost>> format_costs(const weights::Gguf& gguf, const ModelConfig& model,
                                             const std::string& auto_table) {
  std::vector<FormatCost> costs;
  for (const std::string& name : models::format_names()) {
    TRY_ASSIGN(const auto groups, models::plan_groups(gguf, model, name == "auto" ? auto_table : name));
    costs.push_back({models::footprint(name, groups), engine::context_bytes(groups, model.context_length, 0)});
  }
  return costs;
}

Result<KvFormats> kv_formats(const weights::Gguf& gguf, const ModelConfig& model, kernels::Arithmetic arithmetic) {
  KvFormats out{
      .costs = {}, .table = {}, .arithmetic = std::string(to_string(arithmetic)), .found = {}, .own_file = {}};
  TRY_ASSIGN(const Hash128 key, engine::probe_key(gguf, arithmetic));
  const engine::KvProbeSources sources = probe_sources();
  out.found = engine::find_probe(sources, key);
  const bool is_own = out.found && out.found->origin == engine::KvProbeOrigin::kProbedHere;
  if (is_own) out.own_file = engine::probe_path(sources.folder, key);
  if (out.found) out.table = engine::auto_format(out.found->probe);
  TRY_ASSIGN(const auto formats, models::layer_formats("auto", models::k_bias_layers(gguf, model)));
  if (!out.found) out.table = models::format_table(formats);
  TRY_ASSIGN(out.costs, format_costs(gguf, model, out.table));
  return out;
}

Status probe(const Options& options, const std::filesystem::path& path) {
  TRY_ASSIGN(engine::EngineConfig config, compute_config(options));
  config.model_path = path;
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(path));
  TRY_ASSIGN(const Hash128 key, engine::probe_key(gguf, config.arithmetic));
  ProgressBar bar;
  TRY_ASSIGN(const Hash128 f32_key, engine::probe_key(gguf, kernels::Arithmetic::kF32));
  const std::filesystem::path folder = probe_sources().folder;
  TRY_ASSIGN(const engine::KvProbe result,
             tools::probe_formats(config, engine::read_probe(folder, f32_key),
                                  [&](double done, std::string_view what) { bar.show(done, what); }));
  return engine::write_probe(folder, key, result);
}

std::string_view origin_text(engine::KvProbeOrigin origin) {
  return origin == engine::KvProbeOrigin::kShipped ? "shipped: probed" : "probed";
}

void print_costs(const std::vector<FormatCost>& costs) {
  for (const FormatCost& cost : costs) {
    const models::KvFootprint& kv = cost.footprint;
    const uint64_t window = kv.window_bytes_per_token;
    line(&cost == costs.data() ? "KV cache" : "",
         fmt::format("{:<6} {} B per token{}, {} for a full context{}", kv.format, kv.bytes_per_token + window,
                     window == 0 ? "" : fmt::format(", {} of them in the window only", window),
                     size_text(static_cast<int64_t>(cost.context_bytes)),
                     kv.note.empty() ? "" : fmt::format(" ({})", kv.note)));
  }
}

void print_formats(const KvFormats& formats) {
  print_costs(formats.costs);
  line("KV format", fmt::format("auto: {} in {} arithmetic ({})", formats.table, formats.arithmetic,
                                formats.found ? fmt::format("{} on {} tokens", origin_text(formats.found->origin),
                                                            formats.found->probe.n_tokens)
                                              : "by rule; --probe measures"));
  if (!formats.found) return;
  for (const auto& [format, distance] : formats.found->probe.verdicts) {
    line("", fmt::format("{:<6} {}: {}", engine::passes(distance) ? "passes" : "fails", format,
                         engine::to_string(distance)));
  }
}

std::string formats_json(const KvFormats& formats) {
  std::string verdicts, costs;
  for (const auto& [kv, context_bytes] : formats.costs) {
    costs += fmt::format(
        "{}\"{}\":{{\"note\":{},\"bytes_per_token\":{},\"window_bytes_per_token\":{},\"bytes_per_context\":{}}}",
        costs.empty() ? "" : ",", kv.format, api::json_string(kv.note), kv.bytes_per_token, kv.window_bytes_per_token,
        context_bytes);
  }
  for (const auto& [format, d] : formats.found ? formats.found->probe.verdicts : std::vector<engine::KvVerdict>()) {
    verdicts += fmt::format(
        "{}{{\"format\":{},\"delta_ppl\":{:.6g},\"mean_kl\":{:.6g},\"same_top\":{:.6g},\"passes\":{}}}",
        verdicts.empty() ? "" : ",", api::json_string(format), d.delta_ppl, d.mean_kl, d.same_top, engine::passes(d));
  }
  const bool is_shipped = formats.found && formats.own_file.empty();
  return fmt::format(
      "\"kv\":{{{}}},\"kv_format\":{{\"auto\":{},\"arithmetic\":{},\"probed\":{},\"shipped\":{},\"probe_file\":{},"
      "\"formats\":[{}]}}"
      ",",
      costs, api::json_string(formats.table), api::json_string(formats.arithmetic), formats.found.has_value(),
      is_shipped, formats.own_file.empty() ? "null" : api::json_string(formats.own_file.string()), verdicts);
}

void print_table(const ModelReport& report, const std::optional<KvFormats>& formats) {
  line("model", report.name.empty() ? "(no name)" : report.name);
  line("architecture", report.architecture.empty() ? "(none)" : report.architecture);
  line("file", fmt::format("GGUF v{}, {}{}", report.gguf_version, size_text(report.file_bytes),
                           report.n_parts > 1 ? fmt::format(" in {} parts", report.n_parts) : ""));
  line("parameters", fmt::format("{} in {} tensors", count_text(report.parameters), report.n_tensors));
  for (const weights::TensorTypeBytes& type : report.types) {
    line(&type == report.types.data() ? "weights" : "",
         fmt::format("{:<8} {:>10} in {} tensors", type.type, size_text(type.bytes), type.n_tensors));
  }
  if (report.config) print_config(report);
  if (formats) print_formats(*formats);
  if (const auto& t = report.tokenizer) {
    line("tokenizer", fmt::format("{}{}, {} tokens", t->model, t->pre.empty() ? "" : " (" + t->pre + ")", t->n_tokens));
    line("chat template",
         t->chat_template_bytes > 0 ? fmt::format("yes, {}", size_text(t->chat_template_bytes)) : "no");
  }
  for (const weights::Unsupported& u : report.unsupported) line("unsupported", fmt::format("{}: {}", u.what, u.why));
}

// What stands in the way of serving; a template that does not compile only takes chat away.
bool can_be_served(const ModelReport& report) {
  return report.config && std::ranges::all_of(report.unsupported,
                                              [](const weights::Unsupported& u) { return u.what == "chat template"; });
}

std::string config_json(const ModelReport& report) {
  const ModelConfig& c = *report.config;
  return fmt::format(
      "\"context_length\":{},\"layers\":{},\"embed_dim\":{},\"ffn_dim\":{},\"vocab_size\":{},\"heads\":{},\"kv_heads\":"
      "{},\"attention\":\"{}\","
      "\"head_dim\":{},\"sliding_window\":{},\"window_layers\":{},\"rope_base\":{},\"rope_scaling\":\"{}\",",
      c.context_length, c.n_layers, c.embed_dim, c.ffn_dim, c.vocab_size, c.n_heads, c.n_kv_heads, attention_word(c),
      c.head_dim, c.sliding_window, c.n_local_layers(), c.rope.freq_base, to_string(c.rope.scaling));
}

std::string report_json(const ModelReport& report, const std::optional<KvFormats>& formats) {
  std::string types, unsupported;
  for (const weights::TensorTypeBytes& t : report.types) {
    types += fmt::format("{}{}:{{\"tensors\":{},\"bytes\":{}}}", types.empty() ? "" : ",", api::json_string(t.type),
                         t.n_tensors, t.bytes);
  }
  for (const weights::Unsupported& u : report.unsupported) {
    unsupported += fmt::format("{}{{\"what\":{},\"why\":{}}}", unsupported.empty() ? "" : ",", api::json_string(u.what),
                               api::json_string(u.why));
  }
  std::string tokenizer = "null";
  if (const auto& t = report.tokenizer) {
    tokenizer = fmt::format("{{\"model\":{},\"pre\":{},\"tokens\":{}}}", api::json_string(t->model),
                            api::json_string(t->pre), t->n_tokens);
  }
  return fmt::format(
      "{{\"name\":{},\"architecture\":{},\"gguf_version\":{},\"parts\":{},\"file_bytes\":{},\"parameters\":{},"
      "\"tensors\":{},\"types\":{{{}}},{}{}"
      "\"tokenizer\":{},\"chat_template\":{},\"unsupported\":[{}],\"can_be_served\":{}}}",
      api::json_string(report.name), api::json_string(report.architecture), report.gguf_version, report.n_parts,
      report.file_bytes, report.parameters, report.n_tensors, types, report.config ? config_json(report) : "",
      formats ? formats_json(*formats) : "", tokenizer, report.tokenizer && report.tokenizer->chat_template_bytes > 0,
      unsupported, can_be_served(report));
}

}  // namespace

Status inspect(const Options& options) {
  TRY_ASSIGN(const std::filesystem::path path, find_model(options.model));
  TRY_ASSIGN(const engine::EngineConfig config, compute_config(options));
  if (options.probe) TRY(probe(options, path));
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(path));
  ModelReport report = weights::describe(gguf);
  try_text(gguf, path, report);
  std::optional<KvFormats> formats;
  if (report.config) {
    TRY_ASSIGN(formats, kv_formats(gguf, *report.config, config.arithmetic));
  }
  if (options.json) {
    std::printf("%s\n", report_json(report, formats).c_str());
    return {};
  }
  print_table(report, formats);
  line("serving", can_be_served(report) ? "this model can be served" : "this model cannot be served");
  return {};
}

}  // namespace pagoda::cmd
