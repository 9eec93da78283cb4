#include <algorithm>
#include <cctype>
#include <cstdio>

#include "cmd/commands.h"
#include "cmd/model_path.h"
#include "cmd/plan_text.h"
#include "cmd/progress.h"
#include "engine/kv_probe.h"
#include "engine/memory_room.h"
#include "tools/planner_json.h"

namespace pagoda::cmd {
namespace {

using tools::Plan;
using tools::PlannedModel;
using tools::PlanReport;
using tools::PlanRequest;

constexpr int kDefaultContext = 2048;
constexpr double kGiga = 1e9;

Result<tensor::DType> weight_type(const std::string& name) {
  std::string wanted = name, names;
  std::ranges::transform(wanted, wanted.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (size_t i = 0; i < tensor::kDTypeCount; ++i) {
    const auto type = static_cast<tensor::DType>(i);
    if (to_string(type) == wanted) return type;
    names.append(names.empty() ? "" : ", ").append(to_string(type));
  }
  return fail(Error{ErrorCode::kInvalidArgument, fmt::format("unknown weight type \"{}\"; there are {}", name, names),
                    "--weights"});
}

// A file or recipe first, then a public shape.
struct Source {
  std::optional<std::filesystem::path> path;  // none: a shape
  PlannedModel model;
};
Result<Source> source_of(const Options& options) {
  const auto* shape = tools::find_shape(options.model);
  Result<std::filesystem::path> path = find_model(options.model);
  if (path) {
    if (!options.weights.empty()) {
      return fail(Error{ErrorCode::kInvalidArgument,
                        "a file's weights are what they are; leave it out, or name a public shape", "--weights"});
    }
    TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(*path));
    TRY_ASSIGN(PlannedModel model, tools::planned_model(gguf));
    if (model.name.empty()) model.name = path->stem().string();
    return Source{std::move(*path), std::move(model)};
  }
  if (shape != nullptr) {
    TRY_ASSIGN(const tensor::DType type, weight_type(options.weights.empty() ? "Q4_K" : options.weights));
    return Source{std::nullopt, tools::planned_model(*shape, type)};
  }
  if (options.model.find('/') != std::string::npos || options.model.ends_with(".gguf"))
    return fail(std::move(path).error());
  return fail(ErrorCode::kNotFound, "{}; public shapes with names like it: {} (all of them: docs/plan.md)",
              path.error().message, fmt::join(tools::near_shapes(options.model), ", "));
}

Result<PlanRequest> request_of(const Options& options, const PlannedModel& model, const engine::EngineConfig& config) {
  PlanRequest request;
  request.format = options.kv_format;
  request.arithmetic = config.arithmetic;
  request.chunk_tokens = engine::kQuietFactor * options.step_tokens;
  if (options.chunk_tokens > 0) request.chunk_tokens = std::min(options.chunk_tokens, request.chunk_tokens);
  const int trained = model.config.context_length;
  request.context_tokens = options.context_tokens > 0 ? options.context_tokens : std::min(kDefaultContext, trained);
  request.memory_bytes = config.memory_bytes ? *config.memory_bytes : engine::available_memory_bytes();
  request.kv_memory_bytes = config.kv_memory_bytes;
  request.serving = config;
  if (config.tiers.disk_bytes > 0) request.disk_bytes = config.tiers.disk_bytes;
  if (options.users > 0) request.users = options.users;
  return request;
}

// Given, or measured here where one is missing.
Result<tools::MachineRates> rates_of(const Options& options, const engine::EngineConfig& config,
                                     uint64_t weight_bytes) {
  tools::MachineRates rates;
  if (options.bandwidth == 0 || options.ops == 0) {
    TRY_ASSIGN(rates, tools::measure_rates(config.isa, config.n_threads, weight_bytes));
  }
  if (options.bandwidth > 0) rates.read_bytes_per_s = options.bandwidth * kGiga;
  if (options.ops > 0) rates.dots.fill(options.ops * kGiga);
  return rates;
}

std::string rates_source(const Options& options) {
  if (options.bandwidth > 0 && options.ops > 0) return "given";
  return options.bandwidth > 0 || options.ops > 0 ? "given and measured here" : "measured here";
}

// --verify and --measure run the model.
Status check_runs(const Options& options, const Source& source) {
  for (const auto& [wanted, name] : {std::pair{options.verify, "--verify"}, std::pair{options.measure, "--measure"}}) {
    if (!wanted) continue;
    if (!source.path)
      return fail(Error{ErrorCode::kInvalidArgument,
                        fmt::format("{} is a public shape: name a GGUF file to load", source.model.name), name});
    if (options.kv_format == "f16")
      return fail(Error{ErrorCode::kInvalidArgument, "the engine stores 16 bits as bf16: name that", name});
  }
  return {};
}

// What "auto" is on this model here.
std::string probed_auto(engine::EngineConfig config) {
  config.kv_format = "auto";
  if (const auto gguf = weights::Gguf::open(config.model_path)) engine::apply_probe(probe_sources(), *gguf, config);
  return config.kv_format;
}

// Verified first: what is measured later leaves memory behind.
Result<PlanReport> report_of(const Options& options) {
  TRY_ASSIGN(Source source, source_of(options));
  TRY(check_runs(options, source));
  TRY_ASSIGN(engine::EngineConfig config, compute_config(options));
  TRY_ASSIGN(PlanRequest request, request_of(options, source.model, config));
  PlanReport report;
  ProgressBar bar;
  const tools::PlanProgress progress = [&](double done, std::string_view what) { bar.show(done, what); };
  if (source.path) {
    config.model_path = *source.path;
    source.model.auto_format = probed_auto(config);
    if (config.kv_format == "auto") config.kv_format = source.model.auto_format;
  }
  if (options.verify) {
    TRY_ASSIGN(const Plan plan, tools::make_plan(source.model, request));
    TRY_ASSIGN(report.verified, tools::verify_plan(config, plan, progress));
  }
  TRY_ASSIGN(request.rates, rates_of(options, config, source.model.weight_bytes()));
  report.rates_source = rates_source(options);
  if (options.measure) {
    TRY_ASSIGN(report.measured, tools::measure_generation(config, progress));
  }
  TRY_ASSIGN(const tools::ModelCosts costs, tools::costs_of(source.model, request.format, request.arithmetic));
  std::vector<int> lengths = tools::generation_lengths(source.model.config.context_length);
  for (const tools::MeasuredGeneration& m : report.measured) lengths.push_back(m.n_tokens);
  std::ranges::sort(lengths);
  lengths.erase(std::ranges::unique(lengths).begin(), lengths.end());
  report.generation = tools::generation_costs(costs, source.model.config.embed_dim, lengths, request.rates);
  TRY_ASSIGN(report.plan, tools::make_plan(std::move(source.model), std::move(request)));
  return report;
}

// A limit that was named must hold the model, and what was verified must be as planned.
Status agreement(const Options& options, const PlanReport& report) {
  if (!options.memory.empty() && !report.plan.fit.is_enough) return fail(report.plan.fit.error());
  std::string wrong;
  for (const tools::VerifiedFigure& f : report.verified) {
    if (f.agrees()) continue;
    wrong += fmt::format("{}{}: planned {} bytes, measured {}", wrong.empty() ? "" : "; ", f.what, f.planned_bytes,
                         f.measured_bytes);
  }
  for (const tools::MeasuredGeneration& m : report.measured) {
    if (!m.same_tokens)
      wrong += fmt::format("{}{} tokens differ without a cache", wrong.empty() ? "" : "; ", m.n_tokens);
  }
  if (wrong.empty()) return {};
  return fail(ErrorCode::kInternal, "plan and reality differ: {}", wrong);
}

}  // namespace

Status plan(const Options& options) {
  TRY_ASSIGN(const PlanReport report, report_of(options));
  std::fputs((options.json ? to_json(report) + "\n" : plan_text(report)).c_str(), stdout);
  return agreement(options, report);
}

}  // namespace pagoda::cmd
