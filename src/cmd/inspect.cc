#include <algorithm>
#include <cstdio>

#include "api/json_text.h"
#include "cmd/commands.h"
#include "cmd/model_path.h"
#include "engine/served_model.h"
#include "weights/model_report.h"

namespace pagoda::cmd {
namespace {

using weights::ModelConfig;
using weights::ModelReport;

const char* attention_word(const ModelConfig& c) {
  if (c.n_kv_heads == c.n_heads) return "MHA";
  return c.n_kv_heads == 1 ? "MQA" : "GQA";
}

int64_t bytes_of_context(const weights::KvFootprint& kv, const ModelConfig& c) {
  return kv.bytes_per_token * c.context_length +
         kv.window_bytes_per_token * std::min(c.sliding_window, c.context_length);
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
  for (const weights::KvFootprint& kv : report.kv) {
    const std::string window =
        kv.window_bytes_per_token == 0 ? "" : fmt::format(" and {} B in the window", kv.window_bytes_per_token);
    line(&kv == report.kv.data() ? "KV cache" : "",
         fmt::format("{:<6} {} B per token{}, {} for a full context", kv.format, kv.bytes_per_token, window,
                     size_text(bytes_of_context(kv, c))));
  }
}

void print_table(const ModelReport& report) {
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
  std::string kv;
  for (const weights::KvFootprint& f : report.kv) {
    kv += fmt::format("{}\"{}\":{{\"bytes_per_token\":{},\"window_bytes_per_token\":{},\"bytes_per_context\":{}}}",
                      kv.empty() ? "" : ",", f.format, f.bytes_per_token, f.window_bytes_per_token,
                      bytes_of_context(f, c));
  }
  return fmt::format(
      "\"context_length\":{},\"layers\":{},\"embed_dim\":{},\"ffn_dim\":{},\"vocab_size\":{},\"heads\":{},\"kv_heads\":"
      "{},\"attention\":\"{}\","
      "\"head_dim\":{},\"sliding_window\":{},\"window_layers\":{},\"rope_base\":{},\"rope_scaling\":\"{}\",\"kv\":{{{}}"
      "},",
      c.context_length, c.n_layers, c.embed_dim, c.ffn_dim, c.vocab_size, c.n_heads, c.n_kv_heads, attention_word(c),
      c.head_dim, c.sliding_window, c.n_local_layers(), c.rope.freq_base, to_string(c.rope.scaling), kv);
}

std::string report_json(const ModelReport& report) {
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
      "\"tensors\":{},\"types\":{{{}}},{}"
      "\"tokenizer\":{},\"chat_template\":{},\"unsupported\":[{}],\"can_be_served\":{}}}",
      api::json_string(report.name), api::json_string(report.architecture), report.gguf_version, report.n_parts,
      report.file_bytes, report.parameters, report.n_tensors, types, report.config ? config_json(report) : "",
      tokenizer, report.tokenizer && report.tokenizer->chat_template_bytes > 0, unsupported, can_be_served(report));
}

}  // namespace

Status inspect(const Options& options) {
  TRY_ASSIGN(const std::filesystem::path path, find_model(options.model));
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(path));
  ModelReport report = weights::describe(gguf);
  try_text(gguf, path, report);
  if (options.json) {
    std::printf("%s\n", report_json(report).c_str());
    return {};
  }
  print_table(report);
  line("serving", can_be_served(report) ? "this model can be served" : "this model cannot be served");
  return {};
}

}  // namespace pagoda::cmd
