#include "api/json_fields.h"
#include "api/json_scan.h"
#include "api/openai.h"
#include "api/openai_sampling.h"

namespace pagoda::api {
namespace {

constexpr int kTextDepth = 8;  // of JSON in messages: content parts and tool calls

using engine::ChatPrompt;
using engine::Prompt;
using engine::Request;
using engine::TextPrompt;
using engine::TokenPrompt;

// ---- chat --------------------------------------------------------------------------------------------------------------------

// Whether messages travel to the template as the client wrote them, or need our hand first.
enum class Messages { kAsWritten, kToNormalize };

Status check_parts(const Json& parts, const std::string& path) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i);
    if (!parts[i].is_object()) {
      return invalid_field(here, fmt::format("{} must be an object with a type, not {}", here, describe(parts[i])));
    }
    const Fields part(parts[i], here + ".");
    TRY_ASSIGN(const auto type, part.string("type"));
    if (!type) return invalid_field(here + ".type", here + ".type is missing");
    if (*type != "text") {
      return unsupported_field(
          here + ".type", fmt::format("content parts of type {} are not supported by this server, only text", *type));
    }
    TRY_ASSIGN(const auto text, part.string("text"));
    if (!text) return invalid_field(here + ".text", here + ".text is missing");
  }
  return {};
}

Result<Messages> check_message(const Json& message, const std::string& path) {
  if (!message.is_object()) {
    return invalid_field(path,
                         fmt::format("{} must be an object with role and content, not {}", path, describe(message)));
  }
  const Fields fields(message, path + ".");
  TRY_ASSIGN(const auto role, fields.string("role"));
  if (!role || role->empty()) return invalid_field(path + ".role", path + ".role is missing");
  const Json* content = fields.find("content");
  if (content == nullptr) return fields.find("tool_calls") ? Messages::kAsWritten : Messages::kToNormalize;
  if (content->is_array()) {
    TRY(check_parts(*content, path + ".content"));
  } else if (!content->is_string()) {
    return invalid_field(path + ".content", fmt::format("{}.content must be a string or a list of parts, not {}", path,
                                                        describe(*content)));
  }
  return *role == "developer" ? Messages::kToNormalize : Messages::kAsWritten;
}

// Templates know no developer role and print a null content as a word.
std::string normalized(const Json& messages) {
  std::string out;
  const auto add_member = [&](std::string_view name, std::string_view value) {
    out += out.back() == '{' ? "\"" : ",\"";
    out.append(name).append("\":").append(value);
  };
  for (const Json& message : messages) {
    out += out.empty() ? "[{" : ",{";
    const auto content = message.find("content");
    const bool has_content = content != message.end() && !content->is_null();
    if (!has_content) add_member("content", message.contains("tool_calls") ? "null" : R"("")");
    for (const auto& [name, value] : message.items()) {
      if (name == "content" && !has_content) continue;
      const bool is_developer = name == "role" && value == "developer";
      const std::string key = Json(name).dump();
      add_member(std::string_view(key).substr(1, key.size() - 2), is_developer ? R"("system")" : value.dump());
    }
    out += '}';
  }
  return out + ']';
}

Result<std::string> parse_messages(const Fields& fields, std::string_view body) {
  TRY_ASSIGN(const Json* list, fields.list("messages"));
  if (list == nullptr || list->empty())
    return invalid_field("messages", "messages must be a list of at least one message");
  Messages all = Messages::kAsWritten;
  for (size_t i = 0; i < list->size(); ++i) {
    TRY_ASSIGN(const Messages one, check_message((*list)[i], fmt::format("messages[{}]", i)));
    if (one == Messages::kToNormalize) all = one;
  }
  if (all == Messages::kToNormalize) return normalized(*list);
  return std::string(raw_member(body, "messages").value_or("[]"));
}

// Every text but roles and types, of values nested no deeper than `depth`.
void add_texts(const Json& value, int depth, std::vector<std::string>& texts) {
  if (value.is_string()) texts.push_back(value.get<std::string>());
  if (!value.is_structured() || depth == 0) return;
  for (auto at = value.begin(); at != value.end(); ++at) {
    if (!value.is_object() || (at.key() != "role" && at.key() != "type")) add_texts(*at, depth - 1, texts);
  }
}

Result<ChatPrompt> parse_chat_prompt(const Fields& fields, std::string_view body) {
  ChatPrompt prompt;
  TRY_ASSIGN(prompt.messages_json, parse_messages(fields, body));
  add_texts(*fields.find("messages"), kTextDepth, prompt.message_texts);
  TRY_ASSIGN(const Json* kwargs, fields.object("chat_template_kwargs"));
  if (kwargs != nullptr) prompt.template_kwargs_json = raw_member(body, "chat_template_kwargs").value_or("");
  TRY_ASSIGN(const bool add, fields.boolean("add_generation_prompt", true));
  if (!add) prompt.generation_prompt = ChatPrompt::GenerationPrompt::kOmit;
  TRY_ASSIGN(const bool continue_final, fields.boolean("continue_final_message", false));
  if (continue_final)
    return unsupported_field("continue_final_message", "continue_final_message is not supported by this server");
  TRY_ASSIGN(const bool echo, fields.boolean("echo", false));
  if (echo) return unsupported_field("echo", "echo is not supported for chats");
  for (const char* name : {"chat_template", "documents"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && !value->empty())
      return unsupported_field(name, fmt::format("{} is not supported by this server", name));
  }
  TRY_ASSIGN(const Json* modalities, fields.list("modalities"));
  if (modalities != nullptr) {
    for (const Json& modality : *modalities) {
      if (modality != "text") return unsupported_field("modalities", "this server answers with text only");
    }
  }
  return prompt;
}

// -1 is "no limit" to clients of llama.cpp.
Result<std::optional<int>> parse_token_limit(const Fields& fields, std::string_view name, int64_t low) {
  if (const Json* value = fields.find(name); value != nullptr && *value == -1) return std::nullopt;
  TRY_ASSIGN(const auto limit, fields.integer(name, low, INT32_MAX, Fields::Above::kClamped));
  if (!limit) return std::nullopt;
  return static_cast<int>(*limit);
}

Status parse_chat_logprobs(const Fields& fields, Request& request) {
  TRY_ASSIGN(const bool logprobs, fields.boolean("logprobs", false));
  TRY_ASSIGN(const auto top, fields.integer("top_logprobs", 0, kMaxLogprobs));
  if (!logprobs && top.value_or(0) > 0) return invalid_field("top_logprobs", "top_logprobs needs logprobs: true");
  if (logprobs) request.logprobs = static_cast<int>(top.value_or(0));
  return {};
}

// ---- completions -------------------------------------------------------------------------------------------------------------

bool is_id_list(const Json& value) { return value.is_array() && !value.empty() && value.front().is_number(); }

Result<Prompt> parse_one_prompt(const Json& value) {
  if (value.is_string()) return TextPrompt{value.get<std::string>()};
  if (is_id_list(value)) {
    TRY_ASSIGN(auto tokens, parse_token_ids(value, "prompt"));
    return TokenPrompt{std::move(tokens)};
  }
  return invalid_field(
      "prompt",
      fmt::format("prompt must be a string, a list of strings, a list of token ids or a list of such lists, not {}",
                  value.is_array() ? "an empty list" : describe(value)));
}

Result<std::vector<Prompt>> parse_prompts(const Fields& fields) {
  const Json* value = fields.find("prompt");
  if (value == nullptr) return invalid_field("prompt", "prompt is missing");
  std::vector<Prompt> prompts;
  if (!value->is_array() || value->empty() || is_id_list(*value)) {
    TRY_ASSIGN(Prompt one, parse_one_prompt(*value));
    prompts.push_back(std::move(one));
    return prompts;
  }
  if (value->size() > kMaxPrompts) {
    return invalid_field("prompt",
                         fmt::format("{} prompts in one request, at most {} are taken", value->size(), kMaxPrompts));
  }
  for (const Json& entry : *value) {
    TRY_ASSIGN(Prompt one, parse_one_prompt(entry));
    prompts.push_back(std::move(one));
  }
  return prompts;
}

Status parse_completion_logprobs(const Fields& fields, Request& request) {
  TRY_ASSIGN(const bool echo, fields.boolean("echo", false));
  if (echo) request.echo = engine::Echo::kPrompt;
  const Json* value = fields.find("logprobs");
  if (value != nullptr && value->is_boolean()) {  // the chat's form, sent by some clients
    if (value->get<bool>()) request.logprobs = 0;
  } else {
    TRY_ASSIGN(const auto logprobs, fields.integer("logprobs", 0, kMaxLogprobs));
    if (logprobs) request.logprobs = static_cast<int>(*logprobs);
  }
  if (echo && !request.prompt_logprobs) request.prompt_logprobs = request.logprobs;
  return {};
}

}  // namespace

Result<OpenAiCall> parse_chat(std::string_view body) {
  TRY_ASSIGN(const Json object, parse_json_object(body));
  const Fields fields(object);
  OpenAiCall call;
  call.kind = OpenAiCall::Kind::kChat;
  Request request;
  TRY(parse_shared_fields(fields, call, request));
  TRY_ASSIGN(request.prompt, parse_chat_prompt(fields, body));
  TRY_ASSIGN(const auto old_limit, parse_token_limit(fields, "max_tokens", 1));
  TRY_ASSIGN(const auto limit, parse_token_limit(fields, "max_completion_tokens", 1));
  request.max_tokens = limit ? limit : old_limit;
  TRY(parse_chat_logprobs(fields, request));
  call.requests.push_back(std::move(request));
  return call;
}

Result<OpenAiCall> parse_completion(std::string_view body) {
  TRY_ASSIGN(const Json object, parse_json_object(body));
  const Fields fields(object);
  OpenAiCall call;
  call.kind = OpenAiCall::Kind::kCompletion;
  Request shared;
  TRY(parse_shared_fields(fields, call, shared));
  TRY_ASSIGN(const auto suffix, fields.string("suffix"));
  if (suffix && !suffix->empty()) return unsupported_field("suffix", "suffix is not supported by this server");
  TRY(parse_completion_logprobs(fields, shared));
  const char* limit = fields.find("max_tokens") ? "max_tokens" : "max_completion_tokens";
  TRY_ASSIGN(shared.max_tokens, parse_token_limit(fields, limit, 0));
  if (fields.find(limit) == nullptr) shared.max_tokens = kDefaultCompletionTokens;
  TRY_ASSIGN(std::vector<Prompt> prompts, parse_prompts(fields));
  if (prompts.size() * static_cast<size_t>(call.n_choices) > kMaxAnswers) {
    return invalid_field("n", fmt::format("{} prompts of {} choices each, at most {} answers are given to one request",
                                          prompts.size(), call.n_choices, kMaxAnswers));
  }
  for (Prompt& prompt : prompts) {
    Request request = shared;
    request.prompt = std::move(prompt);
    call.requests.push_back(std::move(request));
  }
  return call;
}

}  // namespace pagoda::api
