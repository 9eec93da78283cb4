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

Result<std::vector<TokenId>> render_chat(const ServedModel& model, const ChatPrompt& chat) {
  if (!model.chat_template) return fail(model.chat_template.error());
  const std::string kwargs = text::mark_user_text(model.tokenizer, chat.template_kwargs_json);
  const text::RenderOptions options{.generation_prompt = chat.generation_prompt == ChatPrompt::GenerationPrompt::kAdd
                                                             ? text::GenerationPrompt::kAdd
                                                             : text::GenerationPrompt::kOmit,
                                    .extra_json = kwargs,
                                    .now_s = unix_seconds()};
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

}  // namespace

Result<std::vector<TokenId>> tokenize_prompt(const ServedModel& model, const Prompt& prompt) {
  TRY_ASSIGN(std::vector<TokenId> tokens,
             std::visit(Overloaded{[&](const TextPrompt& p) -> Result<std::vector<TokenId>> {
                                     return model.tokenizer.encode(p.text,
                                                                   {text::BosMode::kAuto, text::SpecialMode::kParse});
                                   },
                                   [&](const TokenPrompt& p) -> Result<std::vector<TokenId>> { return p.tokens; },
                                   [&](const ChatPrompt& p) { return render_chat(model, p); }},
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
  const int n_prompt = static_cast<int>(active.prompt.size());
  const int context = model_.info.context_tokens;
  const bool generates = request.max_tokens.value_or(1) > 0;
  if (n_prompt + (generates ? 1 : 0) > context) {
    return fail(Error{ErrorCode::kContextExceeded,
                      fmt::format("the prompt has {} tokens, but the context holds {}{}", n_prompt, context,
                                  generates ? " with the answer" : ""),
                      field_of(request.prompt)});
  }
  active.max_tokens = std::min(request.max_tokens.value_or(context), context - n_prompt);
  TRY(check_tokens(model_, request.stop.token_ids, "stop_token_ids"));
  for (const auto& [token, bias] : request.sampling.logit_bias) TRY(check_tokens(model_, {&token, 1}, "logit_bias"));
  active.usage.prompt_tokens = n_prompt;
  active.record.prompt_tokens = n_prompt;
  active.unfinished = request.n_choices;
  return {};
}

}  // namespace pagoda::engine
