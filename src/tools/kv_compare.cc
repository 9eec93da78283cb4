#include "tools/kv_compare.h"

#include <algorithm>

#include "base/check.h"
#include "engine/evaluate.h"
#include "models/kv_plan.h"

namespace pagoda::tools {
namespace {

using engine::StepRunner;
using Runners = std::vector<StepRunner*>;

// Keeps a step's results, which are valid until the next one.
class Rows final : public engine::LogitsReader {
 public:
  explicit Rows(StepRunner& runner) : runner_(runner) {}

  models::SampleMode mode_of(sched::SeqId) override { return models::SampleMode::kLogits; }
  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const engine::SampleResult> results) override {
    results_ = results;
    if (rows.sampling == sched::Sampling::kLastRow) runner_.scheduler().finish(rows.seq, sched::FinishReason::kStop);
    return {};
  }
  // Of the next step; empty: there was none to do.
  std::span<const engine::SampleResult> step() {
    results_ = {};
    runner_.step(*this);
    return results_;
  }

 private:
  StepRunner& runner_;
  std::span<const engine::SampleResult> results_;
};

// Goes on with the window's own tokens, whatever is sampled.
class Forced final : public engine::LogitsReader {
 public:
  Forced(StepRunner& runner, std::span<const TokenId> window, size_t n_prompt)
      : runner_(runner), window_(window), next_(n_prompt) {}

  models::SampleMode mode_of(sched::SeqId) override { return models::SampleMode::kGreedy; }
  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const engine::SampleResult>) override {
    if (next_ < window_.size()) return {sched::StepOutcome::Kind::kSampled, window_[next_++]};
    runner_.scheduler().finish(rows.seq, sched::FinishReason::kStop);
    return {};
  }
  bool is_decoding() const { return is_decoding_; }
  // False: nothing left to do.
  bool step() {
    const size_t before = next_;
    const bool more = runner_.step(*this);
    is_decoding_ = is_decoding_ || next_ > before;
    return more;
  }

 private:
  StepRunner& runner_;
  const std::span<const TokenId> window_;
  size_t next_;
  bool is_decoding_ = false;
};

Status submit(StepRunner& runner, std::span<const TokenId> tokens, sched::PromptLogits logits) {
  sched::SequenceSpec spec;
  spec.id = sched::SeqId(1);
  spec.model = runner.model_id();
  spec.prompt.assign(tokens.begin(), tokens.end());
  spec.prompt_logits = logits;
  spec.reuse = kv::PrefixReuse::kNone;
  return runner.scheduler().submit(std::move(spec));
}

tl::unexpected<Error> cancelled() { return fail(ErrorCode::kCancelled, "the comparison was stopped"); }

// Takes windows through all runners in lock-step.
class LockStep {
 public:
  LockStep(Runners runners, ThreadPool& pool, const std::function<bool()>& pause)
      : runners_(std::move(runners)), pool_(pool), pause_(pause), stats_(runners_.size()) {
    for (StepRunner* runner : runners_) readers_.emplace_back(*runner);
  }

  // done(n): n of the window's tokens are compared.
  Status run(std::span<const TokenId> window, const std::function<void(size_t)>& done) {
    for (StepRunner* runner : runners_) TRY(submit(*runner, window, sched::PromptLogits::kAll));
    for (size_t n = 0; n < window.size();) {
      TRY_ASSIGN(const size_t n_rows, step());
      compare(window, n, n_rows);
      n += n_rows;
      done(n);
    }
    return {};
  }

  const std::vector<QualityStats>& stats() const { return stats_; }

 private:
  // One step of every runner, which all take the same rows: nothing else runs, and what decides a chunk's length is the same for all.
  Result<size_t> step() {
    results_.clear();
    for (Rows& reader : readers_) {
      if (!pause_()) return cancelled();
      results_.push_back(reader.step());
      CHECK(!results_.back().empty() && results_.back().size() == results_.front().size());
    }
    return results_.front().size();
  }

  void compare(std::span<const TokenId> window, size_t first, size_t n_rows) {
    const size_t n_known = std::min(n_rows, window.size() - 1 - first);
    const size_t n_runners = runners_.size();
    distances_.assign(n_known * n_runners, {});
    {
      const ThreadPool::Step step(pool_);
      pool_.run([&](int part) {
        const Slice slice = slice_of(static_cast<int>(n_known), 1, part, pool_.n_workers());
        std::vector<engine::SampleResult> row(n_runners);
        for (auto i = static_cast<size_t>(slice.begin); i < static_cast<size_t>(slice.end); ++i) {
          for (size_t r = 0; r < n_runners; ++r) row[r] = results_[r][i];
          row_distances(runners_[0]->kernels(), row, window[first + i + 1],
                        std::span(distances_).subspan(i * n_runners, n_runners));
        }
      });
    }
    for (size_t i = 0; i < n_known; ++i) {
      for (size_t r = 0; r < n_runners; ++r) stats_[r].add(distances_[i * n_runners + r]);
    }
  }

  const Runners runners_;
  ThreadPool& pool_;
  const std::function<bool()>& pause_;
  std::vector<QualityStats> stats_;
  std::vector<Rows> readers_;
  std::vector<std::span<const engine::SampleResult>> results_;  // by runner
  std::vector<RowDistance> distances_;                          // [row][runner]
};

double median(std::vector<int64_t>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

Runners all(StepRunner& reference, const std::vector<std::unique_ptr<StepRunner>>& others) {
  Runners runners{&reference};
  for (const auto& other : others) runners.push_back(other.get());
  return runners;
}

Status check_ids(std::span<const TokenId> tokens, int vocab) {
  const auto outside = std::ranges::find_if(tokens, [vocab](TokenId t) { return t.value < 0 || t.value >= vocab; });
  if (outside == tokens.end()) return {};
  return fail(ErrorCode::kInvalidArgument, "token id {} is not in the vocabulary of {} tokens", outside->value, vocab);
}

}  // namespace

Result<std::vector<std::vector<TokenId>>> windows_of(std::span<const TokenId> text, std::optional<TokenId> bos,
                                                     int window_tokens) {
  if (window_tokens < 2) return fail(ErrorCode::kInvalidArgument, "a window of {} tokens predicts none", window_tokens);
  const size_t n_own = static_cast<size_t>(window_tokens) - (bos ? 1 : 0);
  if (text.size() < n_own) {
    return fail(ErrorCode::kInvalidArgument,
                "the text has {} tokens, and a window takes {}: give a longer text, or a shorter context with -c",
                text.size(), n_own);
  }
  std::vector<std::vector<TokenId>> windows;
  for (; text.size() >= n_own; text = text.subspan(n_own)) {
    std::vector<TokenId>& window = windows.emplace_back();
    if (bos) window.push_back(*bos);
    window.insert(window.end(), text.begin(), text.begin() + static_cast<ptrdiff_t>(n_own));
  }
  return windows;
}

engine::EngineConfig KvComparer::reference_of(engine::EngineConfig config) {
  config.kv_format = "bf16";
  config.kv_reuse = engine::KvReuse::kOn;
  config.prefix_cache = engine::PrefixCache::kOff;
  return config;
}

Result<KvComparer> KvComparer::beside(const StepRunner& loaded, engine::EngineConfig config) {
  KvComparer comparer(reference_of(std::move(config)));
  TRY_ASSIGN(comparer.reference_,
             StepRunner::create_beside(loaded, comparer.config_, *comparer.clock_, loaded.kernels()));
  return comparer;
}

Result<KvComparer> KvComparer::load(engine::EngineConfig config) {
  config = reference_of(std::move(config));
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config.model_path));
  TRY_ASSIGN(const weights::ModelConfig model, weights::read_model_config(gguf));
  config.context_tokens = std::min(config.context_tokens.value_or(model.context_length), model.context_length);
  KvComparer comparer(std::move(config));
  TRY_ASSIGN(comparer.reference_, StepRunner::create(comparer.config_, *comparer.clock_));
  return comparer;
}

Status KvComparer::check(const std::string& format) const {
  const std::vector<uint8_t> k_bias(static_cast<size_t>(n_layers()));
  TRY(models::layer_formats(format, k_bias));
  return {};
}

Result<std::unique_ptr<StepRunner>> KvComparer::beside(const KvVariant& variant) const {
  engine::EngineConfig config = config_;
  config.kv_format = variant.format;
  config.arithmetic = variant.arithmetic;
  config.context_tokens = context_tokens();
  const bool is_noise = variant.rounding == KvVariant::Rounding::kOther;
  const kernels::KernelTable& kernels = is_noise ? *noisy_ : reference_->kernels();
  TRY_ASSIGN(auto runner, StepRunner::create_beside(*reference_, config, *clock_, kernels));
  if (runner->context_tokens() < context_tokens()) {
    return fail(ErrorCode::kResourceExhausted, "the memory left for K and V in {} holds {} tokens, not {}",
                variant.name, runner->context_tokens(), context_tokens());
  }
  return runner;
}

Result<std::vector<std::unique_ptr<StepRunner>>> KvComparer::beside(std::span<const KvVariant> variants) const {
  std::vector<std::unique_ptr<StepRunner>> runners;
  for (const KvVariant& variant : variants) {
    if (!pause_()) return cancelled();
    TRY_ASSIGN(runners.emplace_back(), beside(variant));
  }
  return runners;
}

Result<std::vector<KvQuality>> KvComparer::compare(std::span<const KvVariant> variants, Windows windows,
                                                   const KvProgress& progress) {
  TRY_ASSIGN(const auto others, beside(variants));
  const Runners runners = all(*reference_, others);
  LockStep lock_step(runners, reference_->threads(), pause_);
  for (size_t w = 0; w < windows.size(); ++w) {
    TRY(check_ids(windows[w], reference_->model().config().vocab_size));
    const std::string what = fmt::format("window {} of {}", w + 1, windows.size());
    TRY(lock_step.run(windows[w], [&](size_t n) {
      const double part = static_cast<double>(n) / static_cast<double>(windows[w].size());
      progress((static_cast<double>(w) + part) / static_cast<double>(windows.size()), what);
    }));
  }
  std::vector<KvQuality> out;
  for (size_t r = 0; r < runners.size(); ++r) {
    KvQuality quality = lock_step.stats()[r].result();
    quality.format = r == 0 ? config_.kv_format : variants[r - 1].name;
    quality.arithmetic = to_string(r == 0 ? config_.arithmetic : variants[r - 1].arithmetic);
    quality.bytes_per_token = runners[r]->kv_bytes_per_token();
    out.push_back(std::move(quality));
  }
  return out;
}

Result<std::vector<double>> KvComparer::decode_rates(std::span<const KvVariant> variants,
                                                     std::span<const TokenId> window, const KvProgress& progress) {
  CHECK(window.size() > kDecodeTokens);
  TRY_ASSIGN(const auto others, beside(variants));
  const Runners runners = all(*reference_, others);
  const size_t n_prompt = window.size() - kDecodeTokens;
  std::vector<Forced> streams;
  for (StepRunner* runner : runners) {
    TRY(submit(*runner, window.first(n_prompt), sched::PromptLogits::kNone));
    streams.emplace_back(*runner, window, n_prompt);
    while (!streams.back().is_decoding() && streams.back().step()) {
    }
    progress(static_cast<double>(streams.size()) / static_cast<double>(runners.size()), "decoding");
  }
  std::vector<std::vector<int64_t>> step_us(runners.size());
  for (int token = 0; token + 1 < kDecodeTokens; ++token) {
    for (size_t r = 0; r < runners.size(); ++r) {
      const int64_t begin_us = clock_->now_us();
      streams[r].step();
      step_us[r].push_back(std::max<int64_t>(clock_->now_us() - begin_us, 1));
    }
  }
  std::vector<double> rates;
  for (size_t r = 0; r < runners.size(); ++r) {
    while (streams[r].step()) {
    }
    rates.push_back(1e6 / median(step_us[r]));
  }
  return rates;
}

Result<bool> KvComparer::chunks_change_bits(std::span<const TokenId> window) {
  constexpr int kOtherChunk = 23;  // no divisor or multiple of a block or a step
  engine::EngineConfig config = config_;
  config.chunk_tokens = kOtherChunk;
  config.context_tokens = context_tokens();
  TRY_ASSIGN(const auto other, StepRunner::create_beside(*reference_, config, *clock_, reference_->kernels()));
  TRY_ASSIGN(const engine::Evaluation whole, engine::evaluate(*reference_, window, engine::KvReuse::kOn, 0));
  TRY_ASSIGN(const engine::Evaluation chunked, engine::evaluate(*other, window, engine::KvReuse::kOn, 0));
  return whole.logits_hash != chunked.logits_hash;
}

}  // namespace pagoda::tools
