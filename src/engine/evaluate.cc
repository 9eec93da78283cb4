#include "engine/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/digest.h"

namespace pagoda::engine {
namespace {

// Takes the logits of positions 0, 1, 2 ... as they come.
class Judge final : public LogitsReader {
 public:
  Judge(StepRunner& runner, std::span<const TokenId> tokens) : runner_(runner), tokens_(tokens) {}

  models::SampleMode mode_of(sched::SeqId) override { return models::SampleMode::kLogits; }

  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const SampleResult> results) override {
    for (const SampleResult& result : results) take(result.logits);
    if (rows.sampling == sched::Sampling::kLastRow) runner_.scheduler().finish(rows.seq, sched::FinishReason::kStop);
    return {};
  }

  Evaluation result(int n_top) const {
    Evaluation out{.n_tokens = static_cast<int>(tokens_.size()),
                   .nll = 0,
                   .ppl = 0,
                   .logits_hash = hash_.digest(),
                   .top_logits = {}};
    if (out.n_tokens > 1) out.nll = loss_ / (out.n_tokens - 1);
    out.ppl = std::exp(out.nll);
    std::vector<int32_t> ids(last_.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto end = ids.begin() + std::min<ptrdiff_t>(n_top, static_cast<ptrdiff_t>(ids.size()));
    const auto logit = [&](int32_t id) { return last_[static_cast<size_t>(id)]; };
    std::partial_sort(ids.begin(), end, ids.end(),
                      [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
    for (auto id = ids.begin(); id != end; ++id) out.top_logits.emplace_back(TokenId(*id), logit(*id));
    return out;
  }

 private:
  void take(std::span<const float> logits) {
    hash_.update(std::as_bytes(logits));
    const size_t next = ++n_taken_;
    if (next < tokens_.size()) {
      const double log_sum = runner_.kernels().log_sum_exp(logits.data(), static_cast<int>(logits.size()));
      loss_ += log_sum - static_cast<double>(logits[static_cast<size_t>(tokens_[next].value)]);
    } else {
      last_.assign(logits.begin(), logits.end());
    }
  }

  StepRunner& runner_;
  const std::span<const TokenId> tokens_;
  Xxh3Stream hash_;
  size_t n_taken_ = 0;
  double loss_ = 0;
  std::vector<float> last_;
};

Status run_prompt(StepRunner& runner, Judge& judge, sched::SeqId id, std::span<const TokenId> prompt,
                  sched::PromptLogits logits) {
  sched::SequenceSpec spec;
  spec.id = id;
  spec.model = runner.model_id();
  spec.prompt.assign(prompt.begin(), prompt.end());
  spec.prompt_logits = logits;
  spec.reuse = kv::PrefixReuse::kNone;
  TRY(runner.scheduler().submit(std::move(spec)));
  while (runner.step(judge)) {
  }
  return {};
}

}  // namespace

Result<Evaluation> evaluate(StepRunner& runner, std::span<const TokenId> tokens, KvReuse kv_reuse, int n_top_logits) {
  if (tokens.empty()) return fail(ErrorCode::kInvalidArgument, "there are no tokens to evaluate");
  if (tokens.size() > static_cast<size_t>(runner.context_tokens())) {
    return fail(ErrorCode::kContextExceeded, "there are {} tokens to evaluate, but the context holds {}", tokens.size(),
                runner.context_tokens());
  }
  const int vocab = runner.model().config().vocab_size;
  for (const TokenId token : tokens) {
    if (token.value < 0 || token.value >= vocab) {
      return fail(ErrorCode::kInvalidArgument, "token id {} is not in the vocabulary of {} tokens", token.value, vocab);
    }
  }
  Judge judge(runner, tokens);
  if (kv_reuse == KvReuse::kOn) {
    TRY(run_prompt(runner, judge, sched::SeqId(1), tokens, sched::PromptLogits::kAll));
  } else {
    for (size_t n = 1; n <= tokens.size(); ++n) {
      TRY(run_prompt(runner, judge, sched::SeqId(n), tokens.first(n), sched::PromptLogits::kNone));
    }
  }
  return judge.result(n_top_logits);
}

}  // namespace pagoda::engine
