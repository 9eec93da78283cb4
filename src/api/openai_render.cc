#include <algorithm>
#include <span>

#include "api/error_map.h"
#include "api/json_text.h"
#include "api/openai.h"
#include "api/openai_logprobs.h"

namespace pagoda::api {
namespace {

using engine::Accepted;
using engine::ContextUsage;
using engine::Delta;
using engine::Event;
using engine::Finished;
using engine::FinishReason;
using engine::Usage;
using Kind = OpenAiCall::Kind;
using UsageChunks = OpenAiCall::UsageChunks;

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
    case FinishReason::kTimeout:  // clients know no other word; stop_reason says it
      return "length";
    case FinishReason::kCancelled:
      return "abort";  // as vLLM names it
  }
  return "stop";
}

// {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":...,   up to where choices go
std::string answer_prefix(const AnswerHead& head, std::string_view object) {
  std::string out = R"({"id":)";
  append_json_string(out, head.id);
  out += fmt::format(R"(,"object":"{}","created":{},"model":)", object, head.created);
  append_json_string(out, head.model);
  out += R"(,"system_fingerprint":)";
  out += head.fingerprint.empty() ? "null" : json_string(head.fingerprint);
  out += ',';
  return out;
}

// ,"context":{...} or nothing where no policy held.
std::string context_member(const ContextUsage& context) {
  if (context.policy == engine::ContextPolicy::Kind::kRefuse) return {};
  return fmt::format(R"(,"context":{{"policy":"{}","edits":{},"dropped_tokens":{},"dropped_turns":{}}})",
                     to_string(context.policy), context.edits, context.dropped_tokens, context.dropped_turns);
}

std::string usage_json(const Usage& usage) {
  return fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}},)"
      R"("completion_tokens_details":{{"reasoning_tokens":0}}{}}})",
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens,
      context_member(usage.context));
}

// ,"finish_reason":...,"stop_reason":...   A stop id is a reason only if the client named it: the end of the text is not.
void append_finish(std::string& out, const Finished& finished, std::span<const TokenId> stop_tokens) {
  out += fmt::format(R"(,"finish_reason":"{}","stop_reason":)", reason_name(finished.reason));
  if (finished.reason == FinishReason::kTimeout) {
    out += R"("timeout")";
  } else if (!finished.stop_string.empty()) {
    append_json_string(out, finished.stop_string);
  } else if (finished.stop_token && std::ranges::find(stop_tokens, *finished.stop_token) != stop_tokens.end()) {
    out += std::to_string(finished.stop_token->value);
  } else {
    out += "null";
  }
}

// ,"token_ids":[...]
void append_token_ids(std::string& out, std::span<const TokenId> tokens) {
  out += R"(,"token_ids":[)";
  for (size_t i = 0; i < tokens.size(); ++i) out += (i == 0 ? "" : ",") + std::to_string(tokens[i].value);
  out += ']';
}

std::string frame(std::string_view json) { return fmt::format("data: {}\n\n", json); }

bool asks_for_logprobs(const OpenAiCall& call) {
  return std::any_of(call.requests.begin(), call.requests.end(),
                     [](const auto& request) { return request.logprobs.has_value(); });
}

}  // namespace

// ---- usage -------------------------------------------------------------------------------------------------------------------

UsageSum::UsageSum(const OpenAiCall& call) : prompts_(call.requests.size()) {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const engine::Request& request = call.requests[i];
    const bool is_repeated = request.echo == engine::Echo::kPrompt || request.prompt_logprobs;
    if (is_repeated) prompts_[i].repeats = request.n_choices;
  }
}

void UsageSum::add(int prompt, const Event& event) {
  PerPrompt& one = prompts_[static_cast<size_t>(prompt)];
  if (const auto* accepted = std::get_if<Accepted>(&event)) {
    one.usage.prompt_tokens = accepted->prompt_tokens;
    one.usage.context = accepted->context;
  } else if (const auto* edited = std::get_if<engine::Edited>(&event)) {
    one.usage.context = edited->context;
  } else if (const auto* delta = std::get_if<Delta>(&event)) {
    one.heard_tokens += static_cast<int>(delta->tokens.size());
    one.usage.completion_tokens = std::max(0, one.heard_tokens - one.repeats * one.usage.prompt_tokens);
  } else if (const auto* finished = std::get_if<Finished>(&event)) {
    one.usage = finished->usage;
  }
}

Usage UsageSum::total() const {
  Usage sum;
  for (const PerPrompt& one : prompts_) {
    sum.prompt_tokens += one.usage.prompt_tokens;
    sum.completion_tokens += one.usage.completion_tokens;
    sum.cached_tokens += one.usage.cached_tokens;
    const ContextUsage& context = one.usage.context;
    if (context.policy != engine::ContextPolicy::Kind::kRefuse) sum.context.policy = context.policy;
    sum.context.edits += context.edits;
    sum.context.dropped_tokens += context.dropped_tokens;
    sum.context.dropped_turns = std::max(sum.context.dropped_turns, context.dropped_turns);
  }
  return sum;
}

// ---- whole answers -----------------------------------------------------------------------------------------------------------

OpenAiAnswer::OpenAiAnswer(const OpenAiCall& call, AnswerHead head)
    : kind_(call.kind),
      token_ids_(call.token_ids),
      prompt_logprobs_(call.prompt_logprobs),
      has_echo_(call.requests[0].echo == engine::Echo::kPrompt),
      has_logprobs_(asks_for_logprobs(call)),
      n_choices_(call.n_choices),
      stop_tokens_(call.requests[0].stop.token_ids),
      head_(std::move(head)),
      choices_(call.requests.size() * static_cast<size_t>(call.n_choices)),
      n_open_(static_cast<int>(choices_.size())),
      usage_(call) {}

void OpenAiAnswer::add(int prompt, const Event& event) {
  usage_.add(prompt, event);
  if (const auto* delta = std::get_if<Delta>(&event)) {
    Choice& choice = choices_[static_cast<size_t>(prompt * n_choices_ + delta->choice)];
    choice.text += delta->text;
    choice.tokens.insert(choice.tokens.end(), delta->tokens.begin(), delta->tokens.end());
    choice.logprobs.insert(choice.logprobs.end(), delta->logprobs.begin(), delta->logprobs.end());
  } else if (const auto* finished = std::get_if<Finished>(&event)) {
    choices_[static_cast<size_t>(prompt * n_choices_ + finished->choice)].finished = *finished;
    --n_open_;
  }
}

size_t OpenAiAnswer::n_prompt_entries(size_t choice) const {
  if (prompt_logprobs_ == OpenAiCall::PromptLogprobs::kHidden) return 0;
  const int prompt_tokens = usage_.prompt_tokens(static_cast<int>(choice) / n_choices_);
  return std::min(choices_[choice].logprobs.size(), static_cast<size_t>(prompt_tokens));
}

std::string OpenAiAnswer::prompt_logprobs_json(size_t choice) const {
  if (prompt_logprobs_ == OpenAiCall::PromptLogprobs::kHidden) return {};
  std::string out = R"(,"prompt_logprobs":)";
  append_prompt_logprobs(out, std::span(choices_[choice].logprobs).first(n_prompt_entries(choice)));
  return out;
}

std::string OpenAiAnswer::choice_json(size_t index) const {
  const bool is_chat = kind_ == Kind::kChat;
  const Choice& choice = choices_[index];
  const size_t n_hidden = has_echo_ ? 0 : n_prompt_entries(index);  // what only prompt_logprobs asked for
  const auto logprobs = std::span(choice.logprobs).subspan(n_hidden);
  std::string out = fmt::format(R"({{"index":{},)", index);
  out += is_chat ? R"("message":{"role":"assistant","content":)" : R"("text":)";
  append_json_string(out, choice.text);
  if (is_chat) out += R"(,"refusal":null,"annotations":[]})";
  out += R"(,"logprobs":)";
  if (!has_logprobs_) {
    out += "null";
  } else if (is_chat) {
    append_chat_logprobs(out, logprobs);
  } else {
    append_legacy_logprobs(out, logprobs, 0);
  }
  append_finish(out, choice.finished, stop_tokens_);
  if (token_ids_ == OpenAiCall::TokenIds::kShown) {
    append_token_ids(out, std::span(choice.tokens).subspan(std::min(n_hidden, choice.tokens.size())));
  }
  if (!is_chat) out += prompt_logprobs_json(index);
  return out + "}";
}

std::string OpenAiAnswer::json() const {
  const bool is_chat = kind_ == Kind::kChat;
  std::string out = answer_prefix(head_, is_chat ? "chat.completion" : "text_completion");
  out += R"("choices":[)";
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out += ',';
    out += choice_json(i);
  }
  out += R"(],"usage":)" + usage_json(usage());
  if (is_chat) out += prompt_logprobs_json(0);
  return out + "}";
}

// ---- streams -----------------------------------------------------------------------------------------------------------------

OpenAiStream::OpenAiStream(const OpenAiCall& call, AnswerHead head)
    : kind_(call.kind),
      usage_chunks_(call.usage_chunks),
      token_ids_(call.token_ids),
      has_logprobs_(asks_for_logprobs(call)),
      n_choices_(call.n_choices),
      stop_tokens_(call.requests[0].stop.token_ids),
      prefix_(answer_prefix(head, call.kind == Kind::kChat ? "chat.completion.chunk" : "text_completion")),
      text_characters_(call.requests.size() * static_cast<size_t>(call.n_choices)),
      n_open_(static_cast<int>(text_characters_.size())),
      usage_(call) {}

std::string OpenAiStream::chunk(std::string_view choice, std::string_view more) const {
  std::string out = fmt::format(R"({}"choices":[{}]{})", prefix_, choice, more);
  if (usage_chunks_ == UsageChunks::kLast) out += R"(,"usage":null)";
  if (usage_chunks_ == UsageChunks::kEach) out += R"(,"usage":)" + usage_json(usage());
  out += '}';
  return frame(out);
}

std::string OpenAiStream::frames(int prompt, const Event& event) {
  usage_.add(prompt, event);
  const int first = prompt * n_choices_;
  std::string out;
  if (std::holds_alternative<Accepted>(event) && kind_ == Kind::kChat) {
    for (int i = 0; i < n_choices_; ++i) {
      out += chunk(fmt::format(
          R"({{"index":{},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}})",
          first + i));
    }
  } else if (const auto* delta = std::get_if<Delta>(&event)) {
    out = delta_frame(first + delta->choice, *delta);
  } else if (const auto* finished = std::get_if<Finished>(&event)) {
    --n_open_;
    out = finished_frame(first + finished->choice, *finished);
  }
  return out;
}

std::string OpenAiStream::delta_frame(int index, const Delta& delta) {
  const bool shows_ids = token_ids_ == OpenAiCall::TokenIds::kShown && !delta.tokens.empty();
  if (delta.text.empty() && delta.logprobs.empty() && !shows_ids) return {};
  std::string choice = fmt::format(R"({{"index":{},)", index);
  choice += kind_ == Kind::kChat ? R"("delta":{"content":)" : R"("text":)";
  append_json_string(choice, delta.text);
  choice += kind_ == Kind::kChat ? R"(},"logprobs":)" : R"(,"logprobs":)";
  if (!has_logprobs_ || delta.logprobs.empty()) {
    choice += "null";
  } else if (kind_ == Kind::kChat) {
    append_chat_logprobs(choice, delta.logprobs);
  } else {
    size_t& offset = text_characters_[static_cast<size_t>(index)];
    offset = append_legacy_logprobs(choice, delta.logprobs, offset);
  }
  choice += R"(,"finish_reason":null)";
  if (shows_ids) append_token_ids(choice, delta.tokens);
  choice += '}';
  return chunk(choice);
}

std::string OpenAiStream::finished_frame(int index, const Finished& finished) const {
  std::string choice =
      fmt::format(R"({{"index":{},{},"logprobs":null)", index, kind_ == Kind::kChat ? R"("delta":{})" : R"("text":"")");
  append_finish(choice, finished, stop_tokens_);
  choice += '}';
  return chunk(choice, context_member(usage().context));
}

std::string OpenAiStream::end() const {
  std::string out;
  if (usage_chunks_ != UsageChunks::kNone) {
    out = frame(fmt::format(R"({}"choices":[],"usage":{}}})", prefix_, usage_json(usage())));
  }
  return out + "data: [DONE]\n\n";
}

std::string openai_error_frame(const Error& error) { return frame(openai_error(error)); }

// ---- models ------------------------------------------------------------------------------------------------------------------

std::string openai_model(const ModelCard& card) {
  std::string out = R"({"id":)";
  append_json_string(out, card.id);
  out += fmt::format(R"(,"object":"model","created":{},"owned_by":"pagoda","root":)", card.created);
  append_json_string(out, card.root);
  out += fmt::format(
      R"(,"parent":null,"max_model_len":{},"meta":{{"n_ctx":{},"n_ctx_train":{},"n_vocab":{},"n_params":{},"size":{}}}}})",
      card.context_tokens, card.context_tokens, card.trained_context_tokens, card.vocab_size, card.n_params,
      card.file_bytes);
  return out;
}

std::string openai_models(const std::vector<ModelCard>& cards) {
  std::string out = R"({"object":"list","data":[)";
  for (const ModelCard& card : cards) {
    if (out.back() != '[') out += ',';
    out += openai_model(card);
  }
  return out + "]}";
}

}  // namespace pagoda::api
