#include "serve/tenant_use.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/overloaded.h"

namespace pagoda::serve {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int kMostRetrySeconds = 60;  // of limits that no clock lifts
constexpr double kNewest = 0.125;      // weight of the last answer in the average

int64_t guessed_tokens(const engine::Prompt& prompt) {
  const auto of_bytes = [](size_t n) { return static_cast<int64_t>(n) / kGuessedTokenBytes + 1; };
  return std::visit(
      Overloaded{
          [&](const engine::TextPrompt& text) { return of_bytes(text.text.size()); },
          [](const engine::TokenPrompt& tokens) { return static_cast<int64_t>(tokens.tokens.size()); },
          [&](const engine::ChatPrompt& chat) { return of_bytes(chat.messages_json.size() + chat.tools_json.size()); }},
      prompt);
}

Status check_kv(const TenantLimits& limits, uint64_t kv_bytes) {
  if (kv_bytes <= limits.kv_bytes.value_or(UINT64_MAX)) return {};
  return fail(
      Error{ErrorCode::kInvalidArgument,
            fmt::format("this may come to hold {} bytes of K and V, but this key may hold {}: a shorter prompt, "
                        "or fewer max_tokens or choices",
                        kv_bytes, *limits.kv_bytes),
            "max_tokens"});
}

tl::unexpected<Error> limited(int retry_after_s, std::string message) {
  return fail(Error{ErrorCode::kRateLimited, std::move(message), {}, retry_after_s});
}

}  // namespace

Result<std::unique_ptr<Admission>> TenantUse::admit(std::shared_ptr<const Tenant> tenant,
                                                    const engine::ModelInfo& model,
                                                    std::span<const engine::Request> requests) {
  const TenantLimits& limits = tenant->limits;
  std::unique_ptr<Admission> admission(new Admission);
  admission->context_tokens_ = std::min(model.context_tokens, limits.context_tokens.value_or(model.context_tokens));
  admission->kv_token_bytes_ = model.kv_token_bytes;
  Load load;
  for (const engine::Request& request : requests) {
    Admission::PromptLoad prompt{request.n_choices, request.max_tokens};
    const int64_t prompt_tokens = std::min(guessed_tokens(request.prompt), admission->context_tokens_);
    prompt.kv_bytes = admission->kv_bytes(prompt, prompt_tokens);
    load.n_answers += prompt.n_choices;
    load.kv_bytes += prompt.kv_bytes;
    load.tokens +=
        prompt_tokens + int64_t{prompt.n_choices} * std::min<int64_t>(prompt.max_tokens.value_or(kGuessedAnswerTokens),
                                                                      admission->context_tokens_);
    admission->prompts_.push_back(prompt);
  }
  TRY(check_possible(limits, load));
  const std::lock_guard lock(mutex_);
  TRY(check_now(limits, load));
  held_.concurrent += load.n_answers;
  held_.queued += load.n_answers;
  held_.kv_bytes += load.kv_bytes;
  if (limits.tokens_per_minute) {
    bucket_.take(load.tokens);
    admission->charged_tokens_ = load.tokens;
  }
  admission->begin_us_ = clock_.now_us();
  admission->tenant_ = std::move(tenant);
  admission->use_ = shared_from_this();
  return admission;
}

Status TenantUse::check_possible(const TenantLimits& limits, const Load& load) {
  const int most = std::min(limits.most_concurrent.value_or(INT32_MAX), limits.most_queued.value_or(INT32_MAX));
  if (load.n_answers > most) {
    return fail(
        Error{ErrorCode::kInvalidArgument,
              fmt::format("{} answers are asked for at once, but this key may have {}: fewer prompts or choices",
                          load.n_answers, most),
              "n"});
  }
  return check_kv(limits, load.kv_bytes);
}

Status TenantUse::check_now(const TenantLimits& limits, const Load& load) {
  const int retry_s = retry_after_s(limits.most_concurrent.value_or(held_.concurrent));
  if (limits.most_concurrent && held_.concurrent + load.n_answers > *limits.most_concurrent) {
    return limited(retry_s, fmt::format("this key may have {} answers at once, and has {}", *limits.most_concurrent,
                                        held_.concurrent));
  }
  if (limits.most_queued && held_.queued + load.n_answers > *limits.most_queued) {
    return limited(retry_s, fmt::format("{} answers of this key may wait for their first token, and {} do",
                                        *limits.most_queued, held_.queued));
  }
  if (limits.kv_bytes && held_.kv_bytes + load.kv_bytes > *limits.kv_bytes) {
    return limited(retry_s,
                   fmt::format("this may come to hold {} bytes of K and V, but of {} that this key may hold {} "
                               "are taken",
                               load.kv_bytes, *limits.kv_bytes, held_.kv_bytes));
  }
  if (!limits.tokens_per_minute) return {};
  bucket_.set_rate(*limits.tokens_per_minute, clock_.now_us());
  const int64_t wait_us = bucket_.wait_us(load.tokens, clock_.now_us());
  if (wait_us == 0) return {};
  return limited(static_cast<int>((wait_us + kSecondUs - 1) / kSecondUs),
                 fmt::format("this key has used up its {} tokens per minute", *limits.tokens_per_minute));
}

// By how long answers take, one of them ends about then.
int TenantUse::retry_after_s(int most_concurrent) const {
  const double one_us = answer_us_ / std::max(1, most_concurrent);
  return static_cast<int>(std::clamp(std::ceil(one_us / kSecondUs), 1.0, double{kMostRetrySeconds}));
}

TenantUse::Held TenantUse::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

Admission::~Admission() { settle({}); }

// All choices have the prompt's blocks in common, and each its answer's.
uint64_t Admission::kv_bytes(const PromptLoad& prompt, int64_t prompt_tokens) const {
  const int64_t room = std::max<int64_t>(0, context_tokens_ - prompt_tokens);
  const int64_t answer = std::min<int64_t>(prompt.max_tokens.value_or(static_cast<int>(context_tokens_)), room);
  return static_cast<uint64_t>(prompt_tokens + prompt.n_choices * answer) * kv_token_bytes_;
}

Status Admission::accepted(size_t prompt, int prompt_tokens) {
  if (!use_) return {};
  PromptLoad& load = prompts_[prompt];
  const uint64_t kv_bytes = this->kv_bytes(load, prompt_tokens);
  const std::optional<uint64_t> most = tenant_->limits.kv_bytes;
  TRY(check_kv(tenant_->limits, kv_bytes));
  const std::lock_guard lock(use_->mutex_);
  const uint64_t all_bytes = use_->held_.kv_bytes - load.kv_bytes + kv_bytes;
  if (most && kv_bytes > load.kv_bytes && all_bytes > *most) {
    return limited(
        use_->retry_after_s(1),
        fmt::format("the prompt has {} tokens: this may come to hold {} bytes of K and V, and with it this key "
                    "would hold more than its {}",
                    prompt_tokens, kv_bytes, *most));
  }
  use_->held_.kv_bytes = all_bytes;
  load.kv_bytes = kv_bytes;
  return {};
}

void Admission::answered(size_t prompt) {
  if (!use_ || !std::exchange(prompts_[prompt].is_queued, false)) return;
  const std::lock_guard lock(use_->mutex_);
  use_->held_.queued -= prompts_[prompt].n_choices;
}

void Admission::settle(const engine::Usage& used) {
  const std::shared_ptr<TenantUse> use = std::exchange(use_, nullptr);
  if (!use) return;
  const std::lock_guard lock(use->mutex_);
  int n_answers = 0;
  for (const PromptLoad& prompt : prompts_) {
    n_answers += prompt.n_choices;
    if (prompt.is_queued) use->held_.queued -= prompt.n_choices;
    use->held_.kv_bytes -= prompt.kv_bytes;
  }
  use->held_.concurrent -= n_answers;
  const auto took_us = static_cast<double>(use->clock_.now_us() - begin_us_);
  use->answer_us_ += (took_us - use->answer_us_) * (use->answer_us_ == 0 ? 1 : kNewest);
  if (!tenant_->limits.tokens_per_minute) return;
  const int64_t tokens = std::max(0, used.prompt_tokens - used.cached_tokens) + used.completion_tokens;
  use->bucket_.give(charged_tokens_ - tokens);
}

}  // namespace pagoda::serve
