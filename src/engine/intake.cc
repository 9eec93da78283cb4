#include "engine/intake.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/digest.h"
#include "base/overloaded.h"
#include "text/user_text.h"

namespace pagoda::engine {
namespace {

// Small texts are prepared beside a large one. Most of them take no more work than what a worker has of its own.
constexpr uint64_t kMostSmallTextBytes = 64 * 1024, kUsualWorkFactor = 128;

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

// The model's, or its tenant's if that is less: that many tokens however many the model was trained for.
ContextLimit context_of(const ModelInfo& info, const Request& request) {
  const int tokens = request.context_tokens.value_or(info.context_tokens);
  if (tokens >= info.context_tokens) return {info.context_tokens, info.trained_context_tokens, false};
  return {tokens, tokens, true};
}

// An answer needs a token's room.
int most_prompt_tokens(const Request& request, int context_tokens) {
  return context_tokens - (request.max_tokens.value_or(context_tokens) > 0 ? 1 : 0);
}

// What a client, or who runs the server, can do about a prompt that is too long under `refused`.
std::string way_out(const ContextLimit& context, std::string_view field, ContextPolicy::Kind refused) {
  const bool can_edit = context.tokens >= kMinPolicyContextTokens;
  const bool can_serve_more = context.tokens < context.trained_tokens;
  const bool has_turns = field == "messages" && refused != ContextPolicy::Kind::kDropTurns;
  std::string out = ": shorten it";
  if (can_edit) {
    out.append(can_serve_more ? ", " : " or ").append("set context_policy to ");
    out.append(has_turns ? "drop_turns or sinks" : "sinks");
  }
  if (can_serve_more) {
    out += fmt::format("{} or serve more of the {} trained tokens (--ctx-size, --memory, --kv-memory)",
                       can_edit ? "," : "", context.trained_tokens);
  }
  return out;
}

Error exceeds_context(const ContextLimit& context, int64_t n_tokens, std::string_view at_least, int most,
                      std::string field) {
  return {ErrorCode::kContextExceeded,
          fmt::format("the prompt has {}{} tokens, but {} holds {}{}{}", at_least, n_tokens,
                      context.is_tenants ? "the context of this key" : "the context", context.tokens,
                      most < context.tokens ? " with the answer" : "",
                      way_out(context, field, ContextPolicy::Kind::kRefuse)),
          std::move(field)};
}

// Of `bytes` of work; waits for other work if need be.
Result<ByteReservation> work_room(const TextLimits& limits, uint64_t bytes, std::string_view what, std::string field) {
  if (limits.memory == nullptr || bytes <= limits.memory->small_work_bytes) return ByteReservation();
  const uint64_t most = limits.memory->work.most_bytes();
  if (bytes > most) {
    return fail(Error{ErrorCode::kInvalidArgument,
                      fmt::format("{} would take {} bytes of memory, but {} are left for it: a shorter prompt, or a "
                                  "larger --memory",
                                  what, bytes, most),
                      std::move(field)});
  }
  return limits.memory->work.reserve(bytes);
}

Result<std::vector<TokenId>> encode(const ServedModel& model, std::string_view text, const text::EncodeOptions& options,
                                    const TextLimits& limits, std::string field) {
  const text::Tokenizer& tokenizer = model.tokenizer;
  if (limits.most_tokens && text.size() > static_cast<size_t>(*limits.most_tokens)) {
    const int64_t least = tokenizer.least_tokens(text);
    if (least > *limits.most_tokens)
      return fail(exceeds_context(limits.context, least, "at least ", *limits.most_tokens, std::move(field)));
  }
  ByteReservation room;
  if (limits.memory != nullptr && text.size() > limits.memory->small_work_bytes / text::Tokenizer::kMostWorkFactor) {
    TRY_ASSIGN(room, work_room(limits, tokenizer.work_bytes(text), "tokenizing", std::move(field)));
  }
  return tokenizer.encode(text, options);
}

// Of texts of any sort; the figures of search_bytes and work_bytes are below that.
constexpr size_t kMostRenderFactor = 1024;

Result<ByteReservation> render_room(const ServedModel& model, const ChatPrompt& chat, const TextLimits& limits) {
  const std::array<std::string_view, 3> texts{chat.messages_json, chat.tools_json, chat.template_kwargs_json};
  size_t n_bytes = 0, search = 0;
  for (const std::string_view text : texts) n_bytes += text.size();
  if (limits.memory == nullptr || n_bytes <= limits.memory->small_work_bytes / kMostRenderFactor)
    return ByteReservation();
  for (const std::string_view text : texts) search += model.tokenizer.search_bytes(text);
  constexpr size_t kMarkCopies = 2;  // with marks, and while more are put in
  return work_room(limits,
                   kMarkCopies * n_bytes + search + text::ChatTemplate::work_bytes({texts[0], texts[1], texts[2]}),
                   "rendering the chat", "messages");
}

Result<int> droppable_turns(const ServedModel& model, const ChatPrompt& chat, const TextLimits& limits) {
  TRY_ASSIGN(const ByteReservation room, render_room(model, chat, limits));  // which parses the messages too
  return text::droppable_turns(chat.messages_json);
}

Result<text::UnmarkedText> render_text(const ServedModel& model, const ChatPrompt& chat, int dropped_turns,
                                       const TextLimits& limits) {
  if (!model.chat_template) return fail(model.chat_template.error());
  TRY_ASSIGN(const ByteReservation room, render_room(model, chat, limits));
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
  return text::unmark_user_text(marked);
}

Result<std::vector<TokenId>> render_chat(const ServedModel& model, const ChatPrompt& chat, int dropped_turns,
                                         const TextLimits& limits) {
  TRY_ASSIGN(const text::UnmarkedText rendered, render_text(model, chat, dropped_turns, limits));
  const auto& [text, guards] = rendered;
  // Templates write BOS themselves where the model wants one; if the text does not begin with it, it is added as for plain text.
  const std::optional<TokenId> bos = model.tokenizer.bos();
  const bool has_bos =
      bos && text.starts_with(model.tokenizer.token_text(*bos)) && !model.tokenizer.token_text(*bos).empty();
  return encode(model, text, {has_bos ? text::BosMode::kOff : text::BosMode::kAuto, text::SpecialMode::kParse, guards},
                limits, "messages");
}

// Of all that is rendered and tokenized.
size_t text_bytes(const Prompt& prompt) {
  return std::visit(
      Overloaded{[](const TextPrompt& p) { return p.text.size(); }, [](const TokenPrompt&) { return size_t{0}; },
                 [](const ChatPrompt& p) {
                   return p.messages_json.size() + p.tools_json.size() + p.template_kwargs_json.size();
                 }},
      prompt);
}

// The request's own policy, or the server's where that can be applied.
Result<ContextPolicy> policy_of(const ServedModel& model, const Request& request, int context) {
  using Kind = ContextPolicy::Kind;
  const ContextPolicy policy = request.context_policy.value_or(model.context_policy);
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

Result<std::vector<TokenId>> tokenize_prompt(const ServedModel& model, const Prompt& prompt, int dropped_turns,
                                             const TextLimits& limits) {
  TRY_ASSIGN(std::vector<TokenId> tokens,
             std::visit(Overloaded{[&](const TextPrompt& p) {
                                     return encode(model, p.text, {text::BosMode::kAuto, text::SpecialMode::kParse},
                                                   limits, "prompt");
                                   },
                                   [&](const TokenPrompt& p) -> Result<std::vector<TokenId>> { return p.tokens; },
                                   [&](const ChatPrompt& p) { return render_chat(model, p, dropped_turns, limits); }},
                        prompt));
  TRY(check_tokens(model, tokens, "prompt"));
  if (tokens.empty()) return fail(Error{ErrorCode::kInvalidArgument, "the prompt is empty", field_of(prompt)});
  return tokens;
}

std::string cache_owner(std::string_view tenant, std::string_view cache_space) {
  if (!cache_space.empty()) return fmt::format("space:{}", cache_space);
  return tenant.empty() ? std::string() : fmt::format("tenant:{}", tenant);
}

kv::CacheNamespace cache_namespace(std::span<const std::byte> secret, const Request& request) {
  return cache_namespace(secret, cache_owner(request.tenant, request.cache_space), request.cache_salt);
}

kv::CacheNamespace cache_namespace(std::span<const std::byte> secret, std::string_view owner, std::string_view salt) {
  kv::CacheNamespace out;
  if (owner.empty() && salt.empty()) return out;
  std::string message;
  for (const std::string_view part : {owner, salt}) {
    const uint64_t length = part.size();
    message.append(reinterpret_cast<const char*>(&length), sizeof length).append(part);
  }
  const Sha256 mac = hmac_sha256(secret, std::as_bytes(std::span(message)));
  std::memcpy(out.bits.data(), mac.data(), sizeof out.bits);
  return out;
}

Intake::Intake(const ServedModel& model, TrafficMemory& memory, int n_workers, size_t max_queued, Ready ready,
               Refused refused)
    : model_(model),
      memory_(memory),
      max_queued_(max_queued),
      large_text_bytes_(std::min<uint64_t>(kMostSmallTextBytes, memory.small_work_bytes / kUsualWorkFactor)),
      ready_(std::move(ready)),
      refused_(std::move(refused)) {
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
    if (small_.size() + large_.size() < max_queued_) {
      const bool is_large = text_bytes(active->request.prompt) > large_text_bytes_;
      (is_large ? large_ : small_).push_back(std::move(active));
      wake_.notify_one();
      return;
    }
  }
  refused_(active, {ErrorCode::kOverloaded, fmt::format("{} requests are waiting already", max_queued_), {}});
}

// Large ones first, since one at a time is all they get.
Intake::Queue* Intake::next_queue() {
  if (!large_.empty() && !is_large_running_) return &large_;
  return small_.empty() ? nullptr : &small_;
}

void Intake::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || next_queue() != nullptr; });
    if (stopping_) return;
    Queue& queue = *next_queue();
    std::shared_ptr<ActiveRequest> active = std::move(queue.front());
    queue.pop_front();
    const bool is_large = &queue == &large_;
    if (is_large) is_large_running_ = true;
    lock.unlock();
    // Nobody waits for a cancelled one: the engine lets it go.
    if (Status prepared = active->cancelled.load() ? Status() : prepare(*active); !prepared)
      refused_(active, std::move(prepared).error());
    else
      ready_(std::move(active));
    active.reset();
    lock.lock();
    if (!is_large) continue;
    is_large_running_ = false;
    wake_.notify_one();
  }
}

// Only where nothing of a prompt is left out does its length decide.
TextLimits Intake::limits_of(const ActiveRequest& active, const ContextPolicy& policy) const {
  TextLimits limits{.memory = &memory_, .most_tokens = {}, .context = context_of(model_.info, active.request)};
  if (policy.kind == ContextPolicy::Kind::kRefuse)
    limits.most_tokens = most_prompt_tokens(active.request, limits.context.tokens);
  return limits;
}

Status Intake::prepare(ActiveRequest& active) {
  const Request& request = active.request;
  if (request.n_choices < 1) return fail(Error{ErrorCode::kInvalidArgument, "there must be at least one choice", "n"});
  if (request.max_tokens.value_or(0) < 0)
    return fail(Error{ErrorCode::kInvalidArgument, "it must not be negative", "max_tokens"});
  const int context = context_of(model_.info, request).tokens;
  TRY_ASSIGN(const ContextPolicy policy, policy_of(model_, request, context));
  TRY_ASSIGN(active.prompt, tokenize_prompt(model_, request.prompt, 0, limits_of(active, policy)));
  TRY(fit_context(active, policy));
  TRY(check_tokens(model_, request.stop.token_ids, "stop_token_ids"));
  for (const auto& [token, bias] : request.sampling.logit_bias) TRY(check_tokens(model_, {&token, 1}, "logit_bias"));
  active.usage.prompt_tokens = static_cast<int>(active.prompt.size());
  active.record.prompt_tokens = active.usage.prompt_tokens;
  active.unfinished = request.n_choices;
  return {};
}

// The prompt as it fits, and how many tokens the answer may have.
Status Intake::fit_context(ActiveRequest& active, const ContextPolicy& policy) {
  using Kind = ContextPolicy::Kind;
  const Request& request = active.request;
  const ContextLimit limit = context_of(model_.info, request);
  const int context = limit.tokens;
  active.max_tokens = request.max_tokens.value_or(context);
  if (policy.kind != Kind::kRefuse) active.max_tokens = std::min(active.max_tokens, kMostAnswerTokens);
  active.context = {.policy = policy.kind, .context_tokens = context, .keep_tokens = policy.keep_tokens, .cuts = {}};
  active.usage.context.policy = policy.kind;
  const int most = most_prompt_tokens(request, context);
  if (policy.kind == Kind::kDropTurns) return fit_turns(active, most);
  if (policy.kind == Kind::kSinks) {
    ContextEdit edit = drop_window(active.prompt, policy.keep_tokens, context, most);
    if (edit.dropped_tokens > 0) count_edit(edit, active.usage.context);
    active.prompt = std::move(edit.tokens);
    return {};
  }
  const int n_prompt = static_cast<int>(active.prompt.size());
  if (n_prompt > most) {
    return fail(exceeds_context(limit, n_prompt, "", most, field_of(request.prompt)));
  }
  active.max_tokens = std::min(active.max_tokens, context - n_prompt);
  return {};
}

Status Intake::fit_turns(ActiveRequest& active, int most_tokens) {
  const Prompt& prompt = active.request.prompt;
  const int n_prompt = static_cast<int>(active.prompt.size());
  const ContextLimit context = context_of(model_.info, active.request);
  const TextLimits limits{.memory = &memory_, .most_tokens = {}, .context = context};
  TRY_ASSIGN(const int n_droppable, droppable_turns(model_, std::get<ChatPrompt>(prompt), limits));
  Result<TurnPrompts> turns =
      plan_turns(std::move(active.prompt), n_droppable, context.tokens, most_tokens, active.max_tokens,
                 [&](int n_turns) { return tokenize_prompt(model_, prompt, n_turns, limits); });
  if (!turns && turns.error().code == ErrorCode::kContextExceeded)
    turns.error().message += way_out(context, "messages", ContextPolicy::Kind::kDropTurns);
  if (!turns) return fail(std::move(turns).error());
  active.prompt = std::move(turns->first.prompt);
  active.context.cuts = std::move(turns->next);
  const int n_dropped = n_prompt - static_cast<int>(active.prompt.size());
  if (n_dropped > 0) count_edit({{}, n_dropped, turns->first.dropped_turns}, active.usage.context);
  const auto& last = active.context.cuts.empty() ? active.prompt : active.context.cuts.back().prompt;
  active.max_tokens = answer_tokens_behind(static_cast<int>(last.size()), context.tokens, active.max_tokens);
  return {};
}

}  // namespace pagoda::engine
