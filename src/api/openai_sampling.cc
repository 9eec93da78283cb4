#include "api/openai_sampling.h"

#include <array>
#include <charconv>

namespace pagoda::api {
namespace {

using engine::ContextPolicy;
using engine::Request;
using engine::SamplingParams;
using engine::StopParams;

constexpr int64_t kMaxInt32 = INT32_MAX;
constexpr int64_t kMostPriority = 1000;
constexpr double kLeastTimeout = 0.001, kMostTimeout = 1e6;

Result<float> number(const Fields& fields, std::string_view name, double otherwise, double low, double high) {
  TRY_ASSIGN(const double value, fields.number(name, otherwise, low, high));
  return static_cast<float>(value);
}

Result<std::vector<std::pair<TokenId, float>>> parse_logit_bias(const Fields& fields) {
  std::vector<std::pair<TokenId, float>> biases;
  TRY_ASSIGN(const Json* object, fields.object("logit_bias"));
  if (object == nullptr) return biases;
  if (object->size() > kMaxLogitBiases) {
    return invalid_field(
        "logit_bias", fmt::format("logit_bias has {} entries, at most {} are taken", object->size(), kMaxLogitBiases));
  }
  for (const auto& [key, value] : object->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size() || id < 0) {
      return invalid_field("logit_bias", "the keys of logit_bias must be token ids");
    }
    const double bias = value.is_number() ? value.get<double>() : 1e9;
    if (!(bias >= -100 && bias <= 100)) {
      return invalid_field("logit_bias", fmt::format("logit_bias of {} must be a number from -100 to 100, not {}", key,
                                                     describe(value)));
    }
    biases.emplace_back(TokenId(id), static_cast<float>(bias));
  }
  return biases;
}

Result<SamplingParams> parse_sampling(const Fields& fields) {
  SamplingParams sampling;
  TRY_ASSIGN(sampling.temperature, number(fields, "temperature", 1, 0, 100));
  TRY_ASSIGN(sampling.top_p, number(fields, "top_p", 1, 0, 1));
  TRY_ASSIGN(sampling.min_p, number(fields, "min_p", 0, 0, 1));
  TRY_ASSIGN(sampling.typical_p, number(fields, "typical_p", 1, 0, 1));
  TRY_ASSIGN(const auto top_k, fields.integer("top_k", -1, kMaxInt32, Fields::Above::kClamped));
  sampling.top_k = static_cast<int>(top_k.value_or(0));
  TRY_ASSIGN(sampling.repetition_penalty, number(fields, "repetition_penalty", 1, 1e-3, 1e3));
  TRY_ASSIGN(sampling.presence_penalty, number(fields, "presence_penalty", 0, -2, 2));
  TRY_ASSIGN(sampling.frequency_penalty, number(fields, "frequency_penalty", 0, -2, 2));
  TRY_ASSIGN(sampling.logit_bias, parse_logit_bias(fields));
  return sampling;
}

Status add_stop_string(const Json& value, std::vector<std::string>& strings) {
  if (!value.is_string())
    return invalid_field("stop", fmt::format("stop must be a string or a list of strings, not {}", describe(value)));
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty()) return invalid_field("stop", "a stop string must not be empty");
  if (text.size() > kMaxStopStringBytes) {
    return invalid_field(
        "stop", fmt::format("a stop string may have {} bytes, this one has {}", kMaxStopStringBytes, text.size()));
  }
  strings.push_back(text);
  return {};
}

Result<StopParams> parse_stop(const Fields& fields) {
  StopParams stop;
  if (const Json* value = fields.find("stop"); value != nullptr && value->is_array()) {
    if (value->size() > kMaxStopStrings) {
      return invalid_field("stop",
                           fmt::format("stop has {} strings, at most {} are taken", value->size(), kMaxStopStrings));
    }
    for (const Json& entry : *value) TRY(add_stop_string(entry, stop.strings));
  } else if (value != nullptr) {
    TRY(add_stop_string(*value, stop.strings));
  }
  TRY_ASSIGN(const Json* ids, fields.list("stop_token_ids"));
  if (ids != nullptr) {
    if (ids->size() > kMaxStopTokens) {
      return invalid_field("stop_token_ids",
                           fmt::format("stop_token_ids has {} ids, at most {} are taken", ids->size(), kMaxStopTokens));
    }
    TRY_ASSIGN(stop.token_ids, parse_token_ids(*ids, "stop_token_ids"));
  }
  TRY_ASSIGN(const bool ignore_eos, fields.boolean("ignore_eos", false));
  if (ignore_eos) stop.end_of_text = StopParams::EndOfText::kIgnore;
  TRY_ASSIGN(const auto min_tokens, fields.integer("min_tokens", 0, kMaxInt32, Fields::Above::kClamped));
  stop.min_tokens = static_cast<int>(min_tokens.value_or(0));
  return stop;
}

Result<std::optional<uint64_t>> parse_seed(const Fields& fields) {
  const Json* value = fields.find("seed");
  if (value != nullptr && value->is_number_unsigned()) return value->get<uint64_t>();
  TRY_ASSIGN(const auto seed, fields.integer("seed", INT64_MIN, INT64_MAX));
  if (!seed || *seed == -1) return std::nullopt;  // -1 means random to clients of llama.cpp and vLLM
  return static_cast<uint64_t>(*seed);
}

Result<ContextPolicy::Kind> policy_kind(const Json& name, std::string_view field) {
  if (name.is_string()) {
    if (const auto kind = engine::parse_context_policy(name.get_ref<const std::string&>())) return *kind;
  }
  return invalid_field(field, fmt::format("{} must be one of {}, not {}", field,
                                          fmt::join(engine::kContextPolicyNames, ", "), describe(name)));
}

// A name, or {"type": name, "keep_tokens": n}; for chats also the Responses API's truncation.
Result<std::optional<ContextPolicy>> parse_policy(const Fields& fields, OpenAiCall::Kind kind) {
  ContextPolicy policy;
  const Json* value = fields.find("context_policy");
  const Json* truncation = kind == OpenAiCall::Kind::kChat ? fields.find("truncation") : nullptr;
  if (value == nullptr && truncation == nullptr) return std::nullopt;
  if (value == nullptr) {
    if (*truncation != "auto" && *truncation != "disabled") {
      return invalid_field("truncation",
                           fmt::format("truncation must be auto or disabled, not {}", describe(*truncation)));
    }
    if (*truncation == "auto") policy.kind = ContextPolicy::Kind::kDropTurns;
    return policy;
  }
  if (!value->is_object()) {
    TRY_ASSIGN(policy.kind, policy_kind(*value, "context_policy"));
    return policy;
  }
  for (const auto& [name, ignored] : value->items()) {
    if (name != "type" && name != "keep_tokens") {
      return invalid_field("context_policy." + name, "context_policy has the members type and keep_tokens only");
    }
  }
  const Fields inner(*value, "context_policy.");
  const Json* type = inner.find("type");
  if (type == nullptr) return invalid_field("context_policy.type", "context_policy.type is missing");
  TRY_ASSIGN(policy.kind, policy_kind(*type, "context_policy.type"));
  TRY_ASSIGN(const auto keep, inner.integer("keep_tokens", 0, kMaxInt32));
  if (keep && policy.kind != ContextPolicy::Kind::kSinks) {
    return invalid_field("context_policy.keep_tokens", "context_policy.keep_tokens is for sinks only");
  }
  if (keep) policy.keep_tokens = static_cast<int>(*keep);
  return policy;
}

Status parse_delivery(const Fields& fields, OpenAiCall& call) {
  TRY_ASSIGN(const bool stream, fields.boolean("stream", false));
  if (stream) call.delivery = OpenAiCall::Delivery::kStream;
  TRY_ASSIGN(const Json* options, fields.object("stream_options"));
  if (options == nullptr || !stream) return {};
  const Fields inner(*options, "stream_options.");
  TRY_ASSIGN(const bool include_usage, inner.boolean("include_usage", false));
  TRY_ASSIGN(const bool continuous, inner.boolean("continuous_usage_stats", false));
  using UsageChunks = OpenAiCall::UsageChunks;
  if (include_usage) call.usage_chunks = continuous ? UsageChunks::kEach : UsageChunks::kLast;
  return {};
}

// Says no to what would change the answer and is not built. Empty values of these fields are what many clients send by default.
Status refuse_unbuilt(const Fields& fields) {
  TRY_ASSIGN(const Json* format, fields.object("response_format"));
  if (format != nullptr) {
    const auto type = format->find("type");
    if (type == format->end() || *type != "text") {
      return unsupported_field("response_format", "response_format can only be {\"type\":\"text\"} on this server");
    }
  }
  constexpr std::array kUnbuilt = {"structured_outputs",
                                   "guided_json",
                                   "guided_regex",
                                   "guided_choice",
                                   "guided_grammar",
                                   "grammar",
                                   "json_schema",
                                   "bad_words",
                                   "tools",
                                   "functions",
                                   "truncate_prompt_tokens",
                                   "allowed_token_ids",
                                   "logits_processors",
                                   "prompt_embeds",
                                   "kv_transfer_params",
                                   "audio"};
  for (const char* name : kUnbuilt) {
    const Json* value = fields.find(name);
    if (value == nullptr || *value == false || *value == "" || (value->is_structured() && value->empty())) continue;
    return unsupported_field(name, fmt::format("{} is not supported by this server", name));
  }
  for (const char* name : {"tool_choice", "function_call"}) {
    const Json* choice = fields.find(name);
    if (choice != nullptr && *choice != "none" && *choice != "auto") {
      return unsupported_field(name, fmt::format("{} can only be none or auto on this server", name));
    }
  }
  TRY_ASSIGN(const bool beam, fields.boolean("use_beam_search", false));
  if (beam) return unsupported_field("use_beam_search", "beam search is not supported by this server");
  return {};
}

// When it is served: priority, the lower first, as in vLLM; timeout, in seconds.
Status parse_order(const Fields& fields, Request& request) {
  TRY_ASSIGN(const auto priority, fields.integer("priority", -kMostPriority, kMostPriority));
  request.priority = static_cast<int>(priority.value_or(0));
  if (fields.find("timeout") == nullptr) return {};
  TRY_ASSIGN(const double seconds, fields.number("timeout", 0, kLeastTimeout, kMostTimeout));
  request.timeout_us = static_cast<int64_t>(seconds * 1e6);
  return {};
}

Status parse_n(const Fields& fields, OpenAiCall& call) {
  TRY_ASSIGN(const auto n, fields.integer("n", 1, kMaxChoices));
  call.n_choices = static_cast<int>(n.value_or(1));
  TRY_ASSIGN(const auto best_of, fields.integer("best_of", 1, kMaxChoices));
  if (best_of && *best_of > call.n_choices)
    return unsupported_field("best_of", "best_of above n is not supported by this server");
  if (best_of && *best_of < call.n_choices) return invalid_field("best_of", "best_of must not be below n");
  return {};
}

}  // namespace

Result<std::vector<TokenId>> parse_token_ids(const Json& list, std::string_view field) {
  std::vector<TokenId> tokens;
  tokens.reserve(list.size());
  for (const Json& entry : list) {
    const auto id = whole_number(entry);
    if (!id || *id < 0 || *id > kMaxInt32) {
      return invalid_field(field, fmt::format("{} must hold token ids, not {}", field, describe(entry)));
    }
    tokens.emplace_back(static_cast<int32_t>(*id));
  }
  return tokens;
}

Status parse_shared_fields(const Fields& fields, OpenAiCall& call, Request& request) {
  TRY(refuse_unbuilt(fields));
  TRY_ASSIGN(auto model, fields.string("model"));
  call.model = std::move(model).value_or("");
  TRY(parse_n(fields, call));
  TRY(parse_delivery(fields, call));
  TRY_ASSIGN(const bool return_token_ids, fields.boolean("return_token_ids", false));
  if (return_token_ids) call.token_ids = OpenAiCall::TokenIds::kShown;

  request.n_choices = call.n_choices;
  TRY_ASSIGN(request.sampling, parse_sampling(fields));
  TRY_ASSIGN(request.stop, parse_stop(fields));
  TRY_ASSIGN(request.seed, parse_seed(fields));
  TRY_ASSIGN(request.context_policy, parse_policy(fields, call.kind));
  TRY_ASSIGN(auto salt, fields.string("cache_salt"));
  if (salt && (salt->empty() || salt->size() > 1024)) {
    return invalid_field("cache_salt", "cache_salt must have from 1 to 1024 characters");
  }
  request.cache_salt = std::move(salt).value_or("");
  TRY_ASSIGN(auto session, fields.string("session_id"));
  if (session && !kv::is_session_name(*session)) {
    return invalid_field("session_id", "session_id must have from 1 to 128 characters of A-Z a-z 0-9 - _ . :");
  }
  request.session_id = std::move(session).value_or("");
  TRY(parse_order(fields, request));

  TRY_ASSIGN(const auto prompt_logprobs, fields.integer("prompt_logprobs", 0, kMaxLogprobs));
  if (prompt_logprobs && call.delivery == OpenAiCall::Delivery::kStream) {
    return invalid_field("prompt_logprobs", "prompt_logprobs are not available in a stream");
  }
  if (prompt_logprobs) {
    request.prompt_logprobs = static_cast<int>(*prompt_logprobs);
    call.prompt_logprobs = OpenAiCall::PromptLogprobs::kShown;
  }
  return {};
}

}  // namespace pagoda::api
