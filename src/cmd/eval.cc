#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/digest.h"
#include "cmd/commands.h"
#include "cmd/compare_kv.h"
#include "cmd/read_file.h"
#include "engine/evaluate.h"
#include "engine/served_model.h"

namespace pagoda::cmd {
namespace {

Result<EvalText> text_of(const Options& options, const engine::EngineConfig& config) {
  if (options.ids_file.empty() == options.file.empty()) {
    return fail(Error{ErrorCode::kInvalidArgument, "give either token ids or a text", "--ids or --text"});
  }
  const std::string& path = options.ids_file.empty() ? options.file : options.ids_file;
  TRY_ASSIGN(const std::string text, read_text(path));
  EvalText out;
  if (!options.ids_file.empty()) {
    TRY_ASSIGN(out.tokens, parse_ids(text, path));
  } else {
    TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(config.model_path));
    TRY_ASSIGN(const text::Tokenizer tokenizer, engine::make_tokenizer(gguf));
    const bool in_windows = !options.compare_kv.empty();  // each with a BOS of its own
    if (in_windows && tokenizer.adds_bos()) out.bos = tokenizer.bos();
    out.tokens = tokenizer.encode(text, {.bos = in_windows ? text::BosMode::kOff : text::BosMode::kAuto});
  }
  if (out.tokens.empty()) return fail(ErrorCode::kInvalidArgument, "there are no tokens to evaluate in {}", path);
  if (options.max_tokens > 0) out.tokens.resize(std::min(out.tokens.size(), static_cast<size_t>(options.max_tokens)));
  return out;
}

}  // namespace

Status eval(const Options& options) {
  TRY_ASSIGN(engine::EngineConfig config, probed_config(options));
  TRY_ASSIGN(const EvalText text, text_of(options, config));
  if (!options.compare_kv.empty()) return compare_kv(options, config, text);
  // Whole prefixes are computed one after another; each is an ordinary prompt.
  const engine::KvReuse kv_reuse = std::exchange(config.kv_reuse, engine::KvReuse::kOn);
  const SteadyClock clock;
  TRY_ASSIGN(const auto runner, engine::StepRunner::create(config, clock));
  TRY_ASSIGN(const engine::Evaluation result, engine::evaluate(*runner, text.tokens, kv_reuse, options.top_logits));

  std::printf("{\"tokens\":%d,\"nll\":%.17g,\"ppl\":%.17g,\"logits_hash\":\"%s\"", result.n_tokens, result.nll,
              result.ppl, to_hex(result.logits_hash).c_str());
  if (options.top_logits > 0) {
    std::printf(",\"top_logits\":[");
    for (size_t i = 0; i < result.top_logits.size(); ++i) {
      const auto& [token, logit] = result.top_logits[i];
      std::printf("%s[%d,%.9g]", i == 0 ? "" : ",", token.value, static_cast<double>(logit));
    }
    std::printf("]");
  }
  std::printf("}\n");
  return {};
}

}  // namespace pagoda::cmd
