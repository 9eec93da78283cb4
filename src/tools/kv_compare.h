// KvComparer: one model run in several KV formats in lock-step, so that their logits are compared row by row and dropped: none are stored.
// Teacher-forced through the cache, as serving writes and reads it: windows of tokens one after another, each in chunks, from an empty cache.
// Owns: the weights once, and per format a cache of one window and the activations of one step.     Units: tokens.
// Threads: one, which computes with the others.     Cost: one prefill with every row's logits per format and window.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/config.h"
#include "engine/step_runner.h"
#include "tools/kv_noise.h"
#include "tools/kv_quality.h"

namespace pagoda::tools {

// done in [0, 1].
using KvProgress = std::function<void(double done, std::string_view what)>;

struct KvVariant {
  enum class Rounding : uint8_t { kAsServed, kOther };  // kOther: kv_noise.h

  std::string name;    // in results
  std::string format;  // as models::layer_formats reads it
  kernels::Arithmetic arithmetic = kernels::Arithmetic::kInt8;
  Rounding rounding = Rounding::kAsServed;
};

// The text as windows of equal length; what does not fill one is left out. `bos`, if any, is each window's first token.
// Errors: kInvalidArgument where it fills none, or a window holds less than two tokens.
Result<std::vector<std::vector<TokenId>>> windows_of(std::span<const TokenId> text, std::optional<TokenId> bos,
                                                     int window_tokens);

class KvComparer {
 public:
  using Windows = std::span<const std::vector<TokenId>>;

  // Loads the model with K and V in bf16, for windows of config.context_tokens, but no more than it was trained for.
  static Result<KvComparer> load(engine::EngineConfig config);
  // The same on the weights and threads of `loaded`, which outlives it and does nothing while this computes.
  static Result<KvComparer> beside(const engine::StepRunner& loaded, engine::EngineConfig config);
  // Called before each step of each format, and before each is made: where it may wait. False: no further (kCancelled).
  void set_pause(std::function<bool()> pause) { pause_ = std::move(pause); }

  int context_tokens() const { return reference_->context_tokens(); }
  kernels::Arithmetic arithmetic() const { return config_.arithmetic; }
  int n_layers() const { return reference_->model().config().n_layers; }
  // Whether the format exists.
  Status check(const std::string& format) const;
  KvVariant variant(const std::string& format) const { return {format, format, config_.arithmetic}; }
  // The reference once more with other roundings: the noise floor.
  KvVariant noise() const { return {"noise", "bf16", config_.arithmetic, KvVariant::Rounding::kOther}; }

  // The reference's figures and then every variant's. A row counts where its next token is known: all of a window but the last.
  // Requires a window, and two tokens in each. Errors: unknown formats, memory, token ids out of range.
  Result<std::vector<KvQuality>> compare(std::span<const KvVariant> variants, Windows windows,
                                         const KvProgress& progress);

  // Tokens per second of one stream with `context` tokens behind it, of the reference and then every variant; token by token in turns, the
  // median step counts. Requires a window of context tokens, more than kDecodeTokens.
  Result<std::vector<double>> decode_rates(std::span<const KvVariant> variants, std::span<const TokenId> window,
                                           const KvProgress& progress);
  static constexpr int kDecodeTokens = 33;

  // Whether one window's logits change a bit where it is computed in chunks of another length: the noise of a computation that is repeated.
  Result<bool> chunks_change_bits(std::span<const TokenId> window);

 private:
  explicit KvComparer(engine::EngineConfig config)
      : clock_(std::make_unique<SteadyClock>()),
        config_(std::move(config)),
        noisy_(std::make_unique<kernels::KernelTable>(noisy(kernels::kernel_table(config_.isa)))) {}
  static engine::EngineConfig reference_of(engine::EngineConfig config);
  Result<std::unique_ptr<engine::StepRunner>> beside(const KvVariant& variant) const;
  Result<std::vector<std::unique_ptr<engine::StepRunner>>> beside(std::span<const KvVariant> variants) const;

  std::unique_ptr<SteadyClock> clock_;
  engine::EngineConfig config_;
  std::unique_ptr<kernels::KernelTable> noisy_;
  std::unique_ptr<engine::StepRunner> reference_;
  std::function<bool()> pause_ = [] { return true; };
};

}  // namespace pagoda::tools
