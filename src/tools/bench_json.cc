// BenchResult as JSON: one object, one line of the file per result line.
#include "api/json_fields.h"
#include "api/json_text.h"
#include "tools/bench_result.h"

namespace pagoda::tools {
namespace {

using api::json_string;

const char* word_of(Bound bound) { return bound == Bound::kBandwidth ? "bandwidth" : "operations"; }

std::string setup_json(const BenchSetup& s) {
  return fmt::format(
      "{{\"pagoda\":{},\"unix_s\":{},\"effort\":{},\"cpu\":{},\"model\":{},\"model_bytes\":{},\"isa\":{},"
      "\"arithmetic\":{},\"kv_format\":{},\"threads\":{},\"context_tokens\":{},\"weight_bytes\":{:.0f},\"kv_bytes_per_"
      "token\":{:.0f},"
      "\"core_share\":{:.3f}}}",
      json_string(s.pagoda), s.unix_s, json_string(s.effort), json_string(s.cpu), json_string(s.model), s.model_bytes,
      json_string(s.isa), json_string(s.arithmetic), json_string(s.kv_format), s.threads, s.context_tokens,
      s.weight_bytes, s.kv_bytes_per_token, s.core_share);
}

std::string line_json(const BenchLine& line) {
  return fmt::format(
      "{{\"work\":{},\"unit\":\"tok/s\",\"runs\":[{:.6g}],\"median\":{:.6g},\"low\":{:.6g},\"high\":{:.6g},"
      "\"gb_per_s\":{:.4g},\"gops\":{:.5g},\"limit\":{:.6g},\"of_limit\":{:.4f},\"bound\":\"{}\","
      "\"limit_gb_per_s\":{:.4g},\"hash\":{},\"hash_of\":{},\"runs_agree\":{},\"preemptions\":{},\"cached_tokens\":{}}"
      "}",
      json_string(line.work), fmt::join(line.runs, ","), line.median(), line.low(), line.high(), line.gb_per_s,
      line.gops, line.limit, line.limit > 0 ? line.median() / line.limit : 0.0, word_of(line.bound),
      line.limit_gb_per_s, json_string(line.hash), json_string(line.hash_of), line.runs_agree, line.preemptions,
      line.cached_tokens);
}

std::string accuracy_json(const AccuracyLine& line) {
  return fmt::format(
      "{{\"arithmetic\":{},\"nll\":{:.9g},\"difference\":{:.6g},\"allowed\":{},\"within\":{},\"logits_hash\":{}}}",
      json_string(line.arithmetic), line.nll, line.difference, line.allowed, line.within(),
      json_string(line.logits_hash));
}

template <typename Items, typename ToJson>
std::string list_json(const Items& items, ToJson&& to_json) {
  std::string out;
  for (const auto& item : items) out.append(out.empty() ? "\n  " : ",\n  ").append(to_json(item));
  return out;
}

// ---- reading -----------------------------------------------------------------------------------------------------------------

constexpr double kMost = 1e18;

Result<BenchSetup> setup_of(const api::Json& object) {
  const api::Fields fields(object, "setup.");
  BenchSetup setup;
  for (const auto& [name, field] :
       {std::pair{"pagoda", &BenchSetup::pagoda}, std::pair{"effort", &BenchSetup::effort},
        std::pair{"cpu", &BenchSetup::cpu}, std::pair{"model", &BenchSetup::model}, std::pair{"isa", &BenchSetup::isa},
        std::pair{"arithmetic", &BenchSetup::arithmetic}, std::pair{"kv_format", &BenchSetup::kv_format}}) {
    TRY_ASSIGN(const std::optional<std::string> text, fields.string(name));
    setup.*field = text.value_or("");
  }
  TRY_ASSIGN(const std::optional<int64_t> unix_s, fields.integer("unix_s", 0, INT64_MAX));
  TRY_ASSIGN(const std::optional<int64_t> model_bytes, fields.integer("model_bytes", 0, INT64_MAX));
  TRY_ASSIGN(const std::optional<int64_t> threads, fields.integer("threads", 0, INT32_MAX));
  TRY_ASSIGN(const std::optional<int64_t> context, fields.integer("context_tokens", 0, INT32_MAX));
  TRY_ASSIGN(setup.weight_bytes, fields.number("weight_bytes", 0, 0, kMost));
  TRY_ASSIGN(setup.kv_bytes_per_token, fields.number("kv_bytes_per_token", 0, 0, kMost));
  TRY_ASSIGN(setup.core_share, fields.number("core_share", 1, 0, kMost));
  setup.unix_s = unix_s.value_or(0);
  setup.model_bytes = static_cast<uint64_t>(model_bytes.value_or(0));
  setup.threads = static_cast<int>(threads.value_or(0));
  setup.context_tokens = static_cast<int>(context.value_or(0));
  return setup;
}

Result<std::vector<double>> runs_of(const api::Fields& fields) {
  TRY_ASSIGN(const api::Json* list, fields.list("runs"));
  if (list == nullptr || list->empty()) return api::invalid_field(fields.path("runs"), "at least one run is needed");
  std::vector<double> runs;
  for (const api::Json& run : *list) {
    if (!run.is_number() || !(run.get<double>() >= 0))
      return api::invalid_field(fields.path("runs"), "a rate must be a number");
    runs.push_back(run.get<double>());
  }
  return runs;
}

Result<BenchLine> line_of(const api::Json& object) {
  if (!object.is_object()) return api::invalid_field("results", "a list of objects is needed");
  const api::Fields fields(object, "results.");
  BenchLine line;
  TRY_ASSIGN(const std::optional<std::string> work, fields.string("work"));
  if (!work) return api::invalid_field("results.work", "it is missing");
  line.work = *work;
  TRY_ASSIGN(line.runs, runs_of(fields));
  TRY_ASSIGN(line.gb_per_s, fields.number("gb_per_s", 0, 0, kMost));
  TRY_ASSIGN(line.gops, fields.number("gops", 0, 0, kMost));
  TRY_ASSIGN(line.limit, fields.number("limit", 0, 0, kMost));
  TRY_ASSIGN(line.limit_gb_per_s, fields.number("limit_gb_per_s", 0, 0, kMost));
  TRY_ASSIGN(line.runs_agree, fields.boolean("runs_agree", true));
  TRY_ASSIGN(const std::optional<int64_t> preemptions, fields.integer("preemptions", 0, INT32_MAX));
  TRY_ASSIGN(const std::optional<int64_t> cached, fields.integer("cached_tokens", 0, INT32_MAX));
  TRY_ASSIGN(const std::optional<std::string> bound, fields.string("bound"));
  TRY_ASSIGN(const std::optional<std::string> hash, fields.string("hash"));
  TRY_ASSIGN(const std::optional<std::string> hash_of, fields.string("hash_of"));
  line.bound = bound == "operations" ? Bound::kOperations : Bound::kBandwidth;
  line.preemptions = static_cast<int>(preemptions.value_or(0));
  line.cached_tokens = static_cast<int>(cached.value_or(0));
  line.hash = hash.value_or("");
  line.hash_of = hash_of.value_or("");
  return line;
}

Result<LeftOut> left_out_of(const api::Json& object) {
  if (!object.is_object()) return api::invalid_field("left_out", "a list of objects is needed");
  const api::Fields fields(object, "left_out.");
  TRY_ASSIGN(const std::optional<std::string> work, fields.string("work"));
  TRY_ASSIGN(const std::optional<std::string> why, fields.string("why"));
  return LeftOut{work.value_or(""), why.value_or("")};
}

Result<AccuracyLine> accuracy_of(const api::Json& object) {
  if (!object.is_object()) return api::invalid_field("accuracy", "a list of objects is needed");
  const api::Fields fields(object, "accuracy.");
  AccuracyLine line;
  TRY_ASSIGN(const std::optional<std::string> arithmetic, fields.string("arithmetic"));
  TRY_ASSIGN(const std::optional<std::string> hash, fields.string("logits_hash"));
  TRY_ASSIGN(line.nll, fields.number("nll", 0, -kMost, kMost));
  TRY_ASSIGN(line.difference, fields.number("difference", 0, -kMost, kMost));
  TRY_ASSIGN(line.allowed, fields.number("allowed", 0, 0, kMost));
  line.arithmetic = arithmetic.value_or("");
  line.logits_hash = hash.value_or("");
  return line;
}

Result<BenchResult> result_of(const api::Json& object) {
  const api::Fields fields(object);
  TRY_ASSIGN(const std::optional<int64_t> schema, fields.integer("schema", 0, INT32_MAX));
  if (schema != kBenchSchema) {
    return api::invalid_field("schema", fmt::format("this version reads results of schema {}", kBenchSchema));
  }
  BenchResult result;
  TRY_ASSIGN(const api::Json* setup, fields.object("setup"));
  if (setup != nullptr) {
    TRY_ASSIGN(result.setup, setup_of(*setup));
  }
  TRY_ASSIGN(const api::Json* lines, fields.list("results"));
  if (lines == nullptr) return api::invalid_field("results", "it is missing");
  for (const api::Json& item : *lines) {
    TRY_ASSIGN(BenchLine line, line_of(item));
    result.lines.push_back(std::move(line));
  }
  TRY_ASSIGN(const api::Json* left_out, fields.list("left_out"));
  for (const api::Json& item : left_out != nullptr ? *left_out : api::Json::array()) {
    TRY_ASSIGN(LeftOut left, left_out_of(item));
    result.left_out.push_back(std::move(left));
  }
  TRY_ASSIGN(const std::optional<int64_t> accuracy_tokens, fields.integer("accuracy_tokens", 0, INT32_MAX));
  result.accuracy_tokens = static_cast<int>(accuracy_tokens.value_or(0));
  TRY_ASSIGN(const api::Json* accuracy, fields.list("accuracy"));
  for (const api::Json& item : accuracy != nullptr ? *accuracy : api::Json::array()) {
    TRY_ASSIGN(AccuracyLine line, accuracy_of(item));
    result.accuracy.push_back(std::move(line));
  }
  return result;
}

}  // namespace

std::string to_json(const BenchResult& result) {
  const auto left_out_json = [](const LeftOut& left) {
    return fmt::format("{{\"work\":{},\"why\":{}}}", json_string(left.work), json_string(left.why));
  };
  return fmt::format(
      "{{\"schema\":{},\n \"setup\":{},\n \"results\":[{}],\n \"left_out\":[{}],\n \"accuracy_tokens\":{},\n "
      "\"accuracy\":[{}]}}\n",
      kBenchSchema, setup_json(result.setup), list_json(result.lines, line_json),
      list_json(result.left_out, left_out_json), result.accuracy_tokens, list_json(result.accuracy, accuracy_json));
}

Result<BenchResult> parse_bench_result(std::string_view json, std::string_view name) {
  auto parsed = api::parse_json_object(json);
  auto result = parsed ? result_of(*parsed) : Result<BenchResult>(tl::unexpect, parsed.error());
  if (result) return result;
  return fail(ErrorCode::kBadFile, "{} is no result of pagoda bench --json: {}", name, result.error().to_string());
}

}  // namespace pagoda::tools
