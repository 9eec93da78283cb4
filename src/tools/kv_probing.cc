#include "tools/kv_probing.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "engine/memory_plan.h"
#include "engine/served_model.h"
#include "models/exec_context.h"
#include "models/kv_plan.h"
#include "tools/probe_text.h"

namespace pagoda::tools {
namespace {

using engine::KvDistance;
using engine::KvProbe;
using engine::KvVerdict;
using kernels::Arithmetic;

constexpr int kWindowTokens = 2048;
constexpr size_t kWindows = 2;
constexpr size_t kLayerTokens = 1024;  // for one layer's part alone
constexpr size_t kLanes = 4;           // beside the reference
constexpr int kPieceRows = 8;          // beside an engine
constexpr uint64_t kLaneBytes = uint64_t{4} << 20;
constexpr size_t kTables = 8;  // between q8 and bf16, the last left out

// Those that this build does not know are passed over.
constexpr std::string_view kProbed[] = {"q8", "k16v8", "k8v4", "k16v4", "q4"};

// Moved by so many standard errors towards failing.
KvDistance doubted(const KvQuality& quality, const KvQuality& noise, double errors) {
  KvDistance d = engine::beyond(quality.distance, noise.distance);
  d.delta_ppl += errors * quality.delta_ppl_error;
  d.mean_kl += errors * (quality.mean_kl_error + noise.mean_kl_error);
  d.same_top -= errors * (quality.same_top_error + noise.same_top_error);
  return d;
}
constexpr double kSure = 1;         // passes, and would with a little bad luck
constexpr double kNotRefuted = -2;  // cannot be told from one that passes

// So that a request that comes meanwhile waits for a few rows at most. The bits do not depend on it.
engine::EngineConfig in_pieces(engine::EngineConfig config) {
  config.step_tokens = config.chunk_tokens = kPieceRows;
  return config;
}

class Prober {
 public:
  // `beside`: null: the model is loaded for it.
  Prober(const engine::EngineConfig& config, const KvProgress& progress, const ProbeBeside* beside)
      : config_(config), progress_(progress), beside_(beside) {}

  // Else kNotFound.
  Result<KvProbe> run_after(const KvProbe& in_f32) {
    const std::string tables[] = {in_f32.table, "bf16"};
    TRY_ASSIGN(const std::string table, confirmed(tables));
    if (table != in_f32.table) return fail(ErrorCode::kNotFound, "{} does not hold here", in_f32.table);
    probe_ = in_f32;
    probe_.unix_s = unix_seconds();
    return std::move(probe_);
  }

  Result<KvProbe> run() {
    TRY(load(Arithmetic::kF32));
    TRY(measure_whole());
    std::vector<std::string> tables{"q8"};
    if (!is_sure("q8")) {
      TRY_ASSIGN(tables, tables_by_layer());
    }
    tables.emplace_back("bf16");
    TRY_ASSIGN(const std::string table, confirmed(tables));
    probe_.table = table;
    if (probe_.find(table) == nullptr) probe_.verdicts.push_back({table, {}});
    probe_.unix_s = unix_seconds();
    return std::move(probe_);
  }

 private:
  Status load(Arithmetic arithmetic) {
    comparer_.reset();  // its memory makes room
    engine::EngineConfig config = config_;
    config.arithmetic = arithmetic;
    config.context_tokens = kWindowTokens;
    if (beside_ == nullptr) {
      TRY_ASSIGN(KvComparer comparer, KvComparer::load(config));
      comparer_.emplace(std::move(comparer));
    } else {
      if (!beside_->pause()) return fail(ErrorCode::kCancelled, "the probe was stopped");
      TRY_ASSIGN(KvComparer comparer, KvComparer::beside(beside_->loaded, in_pieces(config)));
      comparer_.emplace(std::move(comparer));
      comparer_->set_pause(beside_->pause);
    }
    if (!windows_.empty()) return {};
    TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config.model_path));
    TRY_ASSIGN(const text::Tokenizer tokenizer, engine::make_tokenizer(gguf));
    const auto tokens = tokenizer.encode(kProbeText, {.bos = text::BosMode::kOff});
    std::optional<TokenId> bos;
    if (tokenizer.adds_bos()) bos = tokenizer.bos();
    const int window = std::min(comparer_->context_tokens(), static_cast<int>(tokens.size() / kWindows));
    TRY_ASSIGN(windows_, windows_of(tokens, bos, window));
    windows_.resize(std::min(windows_.size(), kWindows * static_cast<size_t>(kWindowTokens / window)));
    n_layers_ = comparer_->n_layers();
    return {};
  }

  // Takes a stretch of the progress bar.
  KvProgress stretch(double part, std::string_view what) {
    const double begin = done_;
    done_ = std::min(1.0, done_ + part);
    return [this, begin, part, what](double done, std::string_view) { progress_(begin + done * part, what); };
  }

  // Of all windows: [0] the noise, then the formats.
  Result<std::vector<KvQuality>> measure(std::span<const std::string> formats, double part, std::string_view what) {
    std::vector<KvVariant> variants{comparer_->noise()};
    for (const std::string& format : formats) variants.push_back(comparer_->variant(format));
    TRY_ASSIGN(std::vector<KvQuality> out, comparer_->compare(variants, windows_, stretch(part, what)));
    out.erase(out.begin());
    return out;
  }

  void note(std::span<const KvQuality> measured) {
    const KvQuality& noise = measured[0];
    for (const KvQuality& quality : measured.subspan(1)) {
      probe_.verdicts.push_back({quality.format, engine::beyond(quality.distance, noise.distance)});
      if (engine::passes(doubted(quality, noise, kSure))) sure_.push_back(quality.format);
    }
    probe_.n_tokens = noise.n_rows;
  }
  bool is_sure(std::string_view format) const { return std::ranges::find(sure_, format) != sure_.end(); }

  Status measure_whole() {
    std::vector<std::string> formats;
    for (const std::string_view name : kProbed) {
      if (comparer_->check(std::string(name))) formats.emplace_back(name);
    }
    TRY_ASSIGN(const auto measured, measure(formats, 0.2, "formats of all layers"));
    note(measured);
    return {};
  }

  // Sure ones only, the cheapest first.
  Result<std::vector<std::string>> tables_by_layer() {
    TRY_ASSIGN(const std::vector<LayerCost> costs, layer_costs());
    std::vector<std::string> tables;
    for (size_t i = 1; i < kTables; ++i) {
      const std::string table = table_without(costs, std::max<size_t>(i * costs.size() / kTables, 1), n_layers_);
      if (probe_.find(table) == nullptr && std::ranges::find(tables, table) == tables.end()) tables.push_back(table);
    }
    for (size_t begin = 0; begin < tables.size(); begin += kLanes) {
      const auto some = std::span(tables).subspan(begin, std::min(kLanes, tables.size() - begin));
      TRY_ASSIGN(const auto measured, measure(some, 0.15, "tables by layer"));
      note(measured);
    }
    if (probe_.find("k16v8") != nullptr) tables.emplace_back("k16v8");
    std::erase_if(tables, [this](const std::string& table) { return !is_sure(table); });
    return tables;
  }

  // Of K, and of V unless all of it may be int8; the dearest first.
  Result<std::vector<LayerCost>> layer_costs() {
    std::vector<LayerCost> costs;
    for (int layer = 0; layer < n_layers_; ++layer) {
      costs.push_back({.layer = layer, .part = LayerCost::Part::kK});
      if (!is_sure("k16v8")) costs.push_back({.layer = layer, .part = LayerCost::Part::kV});
    }
    std::vector<TokenId> window = windows_[0];
    window.resize(std::min(window.size(), kLayerTokens));
    for (size_t begin = 0; begin < costs.size(); begin += kLanes) {
      const auto some = std::span(costs).subspan(begin, std::min(kLanes, costs.size() - begin));
      std::vector<KvVariant> variants;
      for (const LayerCost& cost : some) variants.push_back(comparer_->variant(one_in_int8(cost)));
      const double part = 0.4 * static_cast<double>(some.size()) / static_cast<double>(costs.size());
      TRY_ASSIGN(const auto measured,
                 comparer_->compare(variants, std::span(&window, 1), stretch(part, "one layer at a time")));
      for (size_t i = 0; i < some.size(); ++i) some[i].kl = measured[i + 1].distance.mean_kl;
    }
    std::ranges::stable_sort(costs, std::greater<>(), &LayerCost::kl);
    return costs;
  }

  std::string one_in_int8(const LayerCost& cost) const {
    std::vector<kv::LayerFormat> formats(static_cast<size_t>(n_layers_), {kv::KvType::kBf16, kv::KvType::kBf16});
    kv::LayerFormat& format = formats[static_cast<size_t>(cost.layer)];
    (cost.part == LayerCost::Part::kK ? format.k : format.v) = kv::KvType::kInt8;
    return models::format_table(formats);
  }

  // The first of the tables, the last of which is bf16, that the arithmetic of requests does not refute.
  Result<std::string> confirmed(std::span<const std::string> tables) {
    if (config_.arithmetic == Arithmetic::kF32 || tables.size() == 1) return tables[0];
    TRY(load(config_.arithmetic));
    for (const std::string& table : tables.first(tables.size() - 1)) {
      TRY_ASSIGN(const auto measured, measure(std::span(&table, 1), 0.1, to_string(config_.arithmetic)));
      if (engine::passes(doubted(measured[1], measured[0], kNotRefuted))) return table;
    }
    return tables.back();
  }

  const engine::EngineConfig& config_;
  const KvProgress& progress_;
  const ProbeBeside* beside_;
  std::optional<KvComparer> comparer_;
  std::vector<std::vector<TokenId>> windows_;
  int n_layers_ = 0;
  KvProbe probe_;
  std::vector<std::string> sure_;  // formats that pass beyond doubt
  double done_ = 0;                // of the progress bar
};

}  // namespace

std::string table_without(std::span<const LayerCost> costs, size_t n_kept, int n_layers) {
  std::vector<kv::LayerFormat> formats(static_cast<size_t>(n_layers), {kv::KvType::kInt8, kv::KvType::kInt8});
  for (const LayerCost& cost : costs.first(n_kept)) {
    kv::LayerFormat& format = formats[static_cast<size_t>(cost.layer)];
    (cost.part == LayerCost::Part::kK ? format.k : format.v) = kv::KvType::kBf16;
  }
  return models::format_table(formats);
}

Result<KvProbe> probe_formats(const engine::EngineConfig& config, const std::optional<KvProbe>& in_f32,
                              const KvProgress& progress) {
  if (in_f32 && config.arithmetic != Arithmetic::kF32) {
    Result<KvProbe> probe = Prober(config, progress, nullptr).run_after(*in_f32);
    if (probe || probe.error().code != ErrorCode::kNotFound) return probe;
  }
  return Prober(config, progress, nullptr).run();
}

Result<KvProbe> probe_formats(const engine::EngineConfig& config, const ProbeBeside& beside) {
  const KvProgress nobody = [](double, std::string_view) {};
  return Prober(config, nobody, &beside).run();
}

uint64_t beside_bytes(const engine::StepRunner& loaded, const weights::Gguf& gguf, const engine::EngineConfig& config) {
  const weights::ModelConfig& model = loaded.model().config();
  const auto groups = models::plan_groups(gguf, model, "bf16");
  if (!groups) return UINT64_MAX;
  const int window = std::min(kWindowTokens, loaded.context_tokens());
  const engine::EngineConfig pieces = in_pieces(config);
  const engine::MemoryFit fit = engine::fit_beside(loaded.fit(), *groups, pieces);
  const models::StepLimits limits{fit.schedule.max_step_rows(), pieces.chunk_tokens, window,
                                  loaded.threads().n_workers()};
  // A cache, the rows of a piece, and what the heap and a file's head take beside.
  const uint64_t lane = engine::least_budget_bytes(*groups, window, fit.schedule.max_prefill_rows(), fit.extent_bytes) +
                        models::Workspace::bytes_for(model, limits) + kLaneBytes;
  return lane * (std::size(kProbed) + 2);
}

}  // namespace pagoda::tools
