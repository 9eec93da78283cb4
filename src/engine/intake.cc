#include "engine/intake.h"

#include <cstring>

#include "base/digest.h"
#include "base/overloaded.h"
#include "text/user_text.h"

namespace pagoda::engine {
namespace {

Status check_tokens(const ServedModel& model, std::span<const TokenId> tokens, std::string_view field) {
  for (const TokenId token : tokens) {
    if (token.value >= 0 && token.value < model.info.vocab_size) continue;
    return fail(
        Error{ErrorCode::kInvalidArgument,
              fmt::format("token id {} is not in the vocabulary of {} tokens", token.value, model.info.vocab_size),
              std::string(field)});
  }
  return {};
}

// What the client calls it.
std::string field_of(const Prompt& prompt) {
  return std::holds_alternative<ChatPrompt>(prompt) ? "messages" : "prompt";
}

Result<std::vector<TokenId>> render_chat(const ServedModel& model, const ChatPrompt& chat, int dropped_turns) {
  if (!model.chat_template) return fail(model.chat_template.error());
  const std::string kwargs = text::mark_user_text(model.tokenizer, chat.template_kwargs_json);
  const text::RenderOptions options{.generation_prompt = chat.generation_prompt == ChatPrompt::GenerationPrompt::kAdd
                                                             ? text::GenerationPrompt::kAdd
                                                             : text::GenerationPrompt::kOmit,
                                    .extra_json = kwargs,
                                    .now_s = unix_seconds(),
                                    .dropped_turns = dropped_turns};
  const std::string messages = text::mark_user_text(model.tokenizer, chat.messages_json);
  const std::string tools = text::mark_user_text(model.tokenizer, chat.tools_json);
  TRY_ASSIGN(const std::string marked, model.chat_template->render(messages, tools, options));
  const auto [text, guards] = text::unmark_user_text(marked);
  // Templates write BOS themselves where the model wants one; if the text does not begin with it, it is added as for plain text.
  const std::optional<TokenId> bos = model.tokenizer.bos();
  const bool has_bos =
      bos && text.starts_with(model.tokenizer.token_text(*bos)) && !model.tokenizer.token_text(*bos).empty();
  return model.tokenizer.encode(
      text, {has_bos ? text::BosMode::kOff : text::BosMode::kAuto, text::SpecialMode::kParse, guards});
}

// The request's own policy, or the server's where that can be applied.
Result<ContextPolicy> policy_of(const ServedModel& model, const Request& request) {
  using Kind = ContextPolicy::Kind;
  const ContextPolicy policy = request.context_policy.value_or(model.context_policy);
  const int context = model.info.context_tokens;
  if (policy.kind == Kind::kDropTurns && !std::holds_alternative<ChatPrompt>(request.prompt)) {
    if (!request.context_policy) return ContextPolicy{};
    return fail(Error{ErrorCode::kInvalidArgument,
                      "drop_turns needs messages: this prompt has no turns to drop; sinks works on any prompt",
                      "context_policy"});
  }
  if (policy.kind != Kind::kRefuse && context < kMinPolicyContextTokens) {
    return fail(Error{ErrorCode::kInvalidArgument,
                      fmt::format("a context of {} tokens is too short for a policy but refuse", context),
                      "context_policy"});
  }
  if (policy.kind == Kind::kSinks && (policy.keep_tokens < 0 || policy.keep_tokens > context / 2)) {
    return fail(Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{} tokens cannot be kept of a context of {}: at most half of it", policy.keep_tokens, context),
        "context_policy.keep_tokens"});
  }
  return policy;
}

}  // namespace

Result<std::vector<TokenId>> tokenize_prompt(const ServedModel& model, const Prompt& prompt, int dropped_turns) {
  TRY_ASSIGN(std::vector<TokenId> tokens,
             std::visit(Overloaded{[&](const TextPrompt& p) -> Result<std::vector<TokenId>> {
                                     return model.tokenizer.encode(p.text,
                                                                   {text::BosMode::kAuto, text::SpecialMode::kParse});
                                   },
                                   [&](const TokenPrompt& p) -> Result<std::vector<TokenId>> { return p.tokens; },
                                   [&](const ChatPrompt& p) { return render_chat(model, p, dropped_turns); }},
                        prompt));
  TRY(check_tokens(model, tokens, "prompt"));
  if (tokens.empty()) return fail(Error{ErrorCode::kInvalidArgument, "the prompt is empty", field_of(prompt)});
  return tokens;
}

kv::CacheNamespace cache_namespace(std::span<const std::byte> secret, std::string_view tenant, std::string_view salt) {
  kv::CacheNamespace out;
  if (tenant.empty() && salt.empty()) return out;
  std::string message;
  for (const std::string_view part : {tenant, salt}) {
    const uint64_t length = part.size();
    message.append(reinterpret_cast<const char*>(&length), sizeof length).append(part);
  }
  const Sha256 mac = hmac_sha256(secret, std::as_bytes(std::span(message)));
  std::memcpy(out.bits.data(), mac.data(), sizeof out.bits);
  return out;
}

Intake::Intake(const ServedModel& model, int n_workers, size_t max_queued, Ready ready, Refused refused)
    : model_(model), max_queued_(max_queued), ready_(std::move(ready)), refused_(std::move(refused)) {
  for (int i = 0; i < n_workers; ++i) workers_.emplace_back([this] { work(); });
}

Intake::~Intake() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Intake::push(std::shared_ptr<ActiveRequest> active) {
  {
    const std::lock_guard lock(mutex_);
    active->seed = active->request.seed.value_or((uint64_t{entropy_()} << 32) | entropy_());
    if (queue_.size() < max_queued_) {
      queue_.push_back(std::move(active));
      wake_.notify_one();
      return;
    }
  }
  refused_(active, {ErrorCode::kOverloaded, fmt::format("{} requests are waiting already", max_queued_), {}});
}

void Intake::work() {
  while (true) {
    std::shared_ptr<ActiveRequest> active;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      active = std::move(queue_.front());
      queue_.pop_front();
    }
    if (Status prepared = prepare(*active); !prepared)
      refused_(active, std::move(prepared).error());
    else
      ready_(std::move(active));
  }
}

Status Intake::prepare(ActiveRequest& active) {
  const Request& request = active.request;
  if (request.n_choices < 1) return fail(Error{ErrorCode::kInvalidArgument, "there must be at least one choice", "n"});
  if (request.max_tokens.value_or(0) < 0)
    return fail(Error{ErrorCode::kInvalidArgument, "it must not be negative", "max_tokens"});
  TRY_ASSIGN(active.prompt, tokenize_prompt(model_, request.prompt));
  TRY(fit_context(active));
  TRY(check_tokens(model_, request.stop.token_ids, "stop_token_ids"));
  for (const auto& [token, bias] : request.sampling.logit_bias) TRY(check_tokens(model_, {&token, 1}, "logit_bias"));
  active.usage.prompt_tokens = static_cast<int>(active.prompt.size());
  active.record.prompt_tokens = active.usage.prompt_tokens;
  active.unfinished = request.n_choices;
  return {};
}

// The prompt as it fits, and how many tokens the answer may have.
Status Intake::fit_context(ActiveRequest& active) {
  using Kind = ContextPolicy::Kind;
  const Request& request = active.request;
  TRY_ASSIGN(const ContextPolicy policy, policy_of(model_, request));
  const int context = model_.info.context_tokens;
  active.max_tokens = request.max_tokens.value_or(context);
  if (policy.kind != Kind::kRefuse) active.max_tokens = std::min(active.max_tokens, kMostAnswerTokens);
  active.context = {.policy = policy.kind, .context_tokens = context, .keep_tokens = policy.keep_tokens, .cuts = {}};
  active.usage.context.policy = policy.kind;
  const int most = context - (active.max_tokens > 0 ? 1 : 0);
  if (policy.kind == Kind::kDropTurns) return fit_turns(active, most);
  if (policy.kind == Kind::kSinks) {
    ContextEdit edit = drop_window(active.prompt, policy.keep_tokens, context, most);
    if (edit.dropped_tokens > 0) count_edit(edit, active.usage.context);
    active.prompt = std::move(edit.tokens);
    return {};
  }
  const int n_prompt = static_cast<int>(active.prompt.size());
  if (n_prompt > most) {
    return fail(Error{ErrorCode::kContextExceeded,
                      fmt::format("the prompt has {} tokens, but the context holds {}{}", n_prompt, context,
                                  most < context ? " with the answer" : ""),
                      field_of(request.prompt)});
  }
  active.max_tokens = std::min(active.max_tokens, context - n_prompt);
  return {};
}

Status Intake::fit_turns(ActiveRequest& active, int most_tokens) {
  const Prompt& prompt = active.request.prompt;
  const int n_prompt = static_cast<int>(active.prompt.size());
  TRY_ASSIGN(const int n_droppable, text::droppable_turns(std::get<ChatPrompt>(prompt).messages_json));
  TRY_ASSIGN(TurnPrompts turns,
             plan_turns(std::move(active.prompt), n_droppable, model_.info.context_tokens, most_tokens,
                        active.max_tokens, [&](int n_turns) { return tokenize_prompt(model_, prompt, n_turns); }));
  active.prompt = std::move(turns.first.prompt);
  active.context.cuts = std::move(turns.next);
  const int n_dropped = n_prompt - static_cast<int>(active.prompt.size());
  if (n_dropped > 0) count_edit({{}, n_dropped, turns.first.dropped_turns}, active.usage.context);
  const auto& last = active.context.cuts.empty() ? active.prompt : active.context.cuts.back().prompt;
  active.max_tokens =
      answer_tokens_behind(static_cast<int>(last.size()), model_.info.context_tokens, active.max_tokens);
  return {};
}

}  // namespace pagoda::engine
