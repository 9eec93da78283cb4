#include "tools/bench_accuracy.h"

#include <algorithm>

#include "base/clock.h"
#include "base/digest.h"
#include "engine/evaluate.h"
#include "engine/served_model.h"
#include "tools/accuracy_text.h"

namespace pagoda::tools {
namespace {

using kernels::Arithmetic;

constexpr int kLeastContext = 64;

Result<std::vector<TokenId>> tokens_of_text(const engine::EngineConfig& config, int max_tokens) {
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config.model_path));
  TRY_ASSIGN(const weights::ModelConfig model, weights::read_model_config(gguf));
  TRY_ASSIGN(const text::Tokenizer tokenizer, engine::make_tokenizer(gguf));
  std::vector<TokenId> tokens = tokenizer.encode(kAccuracyText);
  const int context = std::min(model.context_length, config.context_tokens.value_or(model.context_length));
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(std::min(max_tokens, context))));
  return tokens;
}

Result<engine::Evaluation> evaluate(const engine::EngineConfig& config, std::span<const TokenId> tokens) {
  const SteadyClock clock;
  TRY_ASSIGN(const auto runner, engine::StepRunner::create(config, clock));
  return engine::evaluate(*runner, tokens, engine::KvReuse::kOn, 0);
}

}  // namespace

double allowed_difference(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kInt8:
      return 0.01;
    case Arithmetic::kBf16:
      return 0.001;
    case Arithmetic::kF32:
      break;
  }
  return 0;
}

Result<AccuracyResult> measure_accuracy(engine::EngineConfig config, int max_tokens,
                                        const std::function<void(std::string_view what)>& say) {
  TRY_ASSIGN(const std::vector<TokenId> tokens, tokens_of_text(config, max_tokens));
  config.context_tokens = std::max(kLeastContext, static_cast<int>(tokens.size()));
  AccuracyResult result;
  result.n_tokens = static_cast<int>(tokens.size());
  for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kInt8, Arithmetic::kBf16}) {
    const std::string_view name = to_string(arithmetic);
    if (!kernels::parse_arithmetic(name, config.isa)) continue;  // not on this instruction set
    say(fmt::format("accuracy, {}", name));
    config.arithmetic = arithmetic;
    TRY_ASSIGN(const engine::Evaluation loss, evaluate(config, tokens));
    const double reference = result.lines.empty() ? loss.nll : result.lines.front().nll;
    result.lines.push_back({.arithmetic = std::string(name),
                            .nll = loss.nll,
                            .difference = reference > 0 ? (loss.nll - reference) / reference : 0,
                            .allowed = allowed_difference(arithmetic),
                            .logits_hash = to_hex(loss.logits_hash)});
  }
  return result;
}

}  // namespace pagoda::tools
