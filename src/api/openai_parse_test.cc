#include <gmock/gmock.h>

#include "api/error_map.h"
#include "api/openai.h"

namespace pagoda::api {
namespace {

using engine::ChatPrompt;
using engine::Request;
using engine::TextPrompt;
using engine::TokenPrompt;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string chat_with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) + "}";
}
std::string completion_with(const std::string& fields) {
  return R"({"prompt":"hi")" + (fields.empty() ? "" : "," + fields) + "}";
}

Request chat_request(const std::string& fields) {
  const auto call = parse_chat(chat_with(fields));
  EXPECT_TRUE(call) << fields << ": " << call.error().message;
  return call ? call->requests.at(0) : Request{};
}
Request completion_request(const std::string& fields) {
  const auto call = parse_completion(completion_with(fields));
  EXPECT_TRUE(call) << fields << ": " << call.error().message;
  return call ? call->requests.at(0) : Request{};
}
const ChatPrompt& chat_prompt(const OpenAiCall& call) { return std::get<ChatPrompt>(call.requests.at(0).prompt); }

// "400 field" of what parse said no to.
std::string refusal(const Result<OpenAiCall>& call) {
  if (call) return "accepted";
  return std::to_string(error_face(call.error().code).status) + " " + call.error().where;
}
std::string chat_refusal(const std::string& fields) { return refusal(parse_chat(chat_with(fields))); }
std::string completion_refusal(const std::string& fields) { return refusal(parse_completion(completion_with(fields))); }

TEST(OpenAiParse, ContextPolicies) {
  using Kind = engine::ContextPolicy::Kind;
  EXPECT_EQ(chat_request("").context_policy, std::nullopt);
  EXPECT_EQ(chat_request(R"("context_policy":null)").context_policy, std::nullopt);
  for (const auto& [text, kind, keep] : std::vector<std::tuple<const char*, Kind, int>>{
           {R"("context_policy":"refuse")", Kind::kRefuse, 4},
           {R"("context_policy":"sinks")", Kind::kSinks, 4},
           {R"("context_policy":"drop_turns")", Kind::kDropTurns, 4},
           {R"("context_policy":{"type":"drop_turns"})", Kind::kDropTurns, 4},
           {R"("context_policy":{"type":"sinks","keep_tokens":0})", Kind::kSinks, 0},
           {R"("context_policy":{"type":"sinks","keep_tokens":100})", Kind::kSinks, 100},
           {R"("truncation":"disabled","context_policy":"sinks")", Kind::kSinks, 4}}) {
    for (const Request& request : {chat_request(text), completion_request(text)}) {
      ASSERT_TRUE(request.context_policy) << text;
      EXPECT_EQ(request.context_policy->kind, kind) << text;
      EXPECT_EQ(request.context_policy->keep_tokens, keep) << text;
    }
  }
  EXPECT_EQ(chat_request(R"("truncation":"auto")").context_policy->kind, Kind::kDropTurns);
  EXPECT_EQ(chat_request(R"("truncation":"disabled")").context_policy->kind, Kind::kRefuse);
  EXPECT_EQ(chat_refusal(R"("truncation":"sometimes")"), "400 truncation");
  EXPECT_EQ(completion_request(R"("truncation":"auto")").context_policy, std::nullopt);  // no field of that API
  EXPECT_EQ(chat_refusal(R"("context_policy":"shift")"), "400 context_policy");
  EXPECT_THAT(parse_chat(chat_with(R"("context_policy":7)")).error().message, HasSubstr("refuse, sinks, drop_turns"));
  EXPECT_EQ(completion_refusal(R"("context_policy":{})"), "400 context_policy.type");
  EXPECT_EQ(chat_refusal(R"("context_policy":{"type":"x"})"), "400 context_policy.type");
  for (const char* keep : {"-1", "1.5", "\"4\""}) {
    EXPECT_EQ(chat_refusal(std::string(R"("context_policy":{"type":"sinks","keep_tokens":)") + keep + "}"),
              "400 context_policy.keep_tokens");
  }
  EXPECT_EQ(chat_refusal(R"("context_policy":{"type":"refuse","keep_tokens":4})"), "400 context_policy.keep_tokens");
  EXPECT_EQ(chat_refusal(R"("context_policy":{"type":"sinks","keep_token":4})"), "400 context_policy.keep_token");
}

TEST(OpenAiParse, ChatDefaults) {
  const auto call = parse_chat(chat_with(""));
  ASSERT_TRUE(call);
  EXPECT_EQ(call->kind, OpenAiCall::Kind::kChat);
  EXPECT_EQ(call->delivery, OpenAiCall::Delivery::kWhole);
  EXPECT_EQ(call->usage_chunks, OpenAiCall::UsageChunks::kNone);
  const Request& request = call->requests.at(0);
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.seed, std::nullopt);
  EXPECT_EQ(request.logprobs, std::nullopt);
  EXPECT_EQ(chat_prompt(*call).messages_json, R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(chat_prompt(*call).generation_prompt, ChatPrompt::GenerationPrompt::kAdd);
}

TEST(OpenAiParse, EveryField) {
  const Request request = chat_request(
      R"("model":"m","max_completion_tokens":7,"max_tokens":9,"temperature":0,"top_p":0.5,"top_k":40,"min_p":0.1,"typical_p":0.9,
         "repetition_penalty":1.1,"presence_penalty":-2,"frequency_penalty":2,"logit_bias":{"5":-100,"7":1.5},"seed":42,"n":3,
         "stop":["a","b"],"stop_token_ids":[1,2.0],"ignore_eos":true,"min_tokens":4,"logprobs":true,"top_logprobs":5,
         "cache_salt":"s","session_id":"chat:1")");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.n_choices, 3);
  EXPECT_EQ(request.sampling.temperature, 0.0f);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.sampling.typical_p, 0.9f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(request.sampling.presence_penalty, -2.0f);
  EXPECT_EQ(request.sampling.frequency_penalty, 2.0f);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(std::pair(TokenId(5), -100.0f), std::pair(TokenId(7), 1.5f)));
  EXPECT_EQ(request.seed, 42u);
  EXPECT_THAT(request.stop.strings, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop.token_ids, ElementsAre(TokenId(1), TokenId(2)));
  EXPECT_EQ(request.stop.end_of_text, engine::StopParams::EndOfText::kIgnore);
  EXPECT_EQ(request.stop.min_tokens, 4);
  EXPECT_EQ(request.logprobs, 5);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.session_id, "chat:1");
}

TEST(OpenAiParse, NullsAndUnknownFieldsAreAbsent) {
  std::string fields =
      R"("separate_reasoning":true,"no_such_field":{"a":[1]},"user":"u","service_tier":"auto","metadata":{})";
  for (const char* name : {"model",
                           "max_tokens",
                           "max_completion_tokens",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "typical_p",
                           "n",
                           "stop",
                           "stream",
                           "stream_options",
                           "seed",
                           "frequency_penalty",
                           "presence_penalty",
                           "repetition_penalty",
                           "logit_bias",
                           "logprobs",
                           "top_logprobs",
                           "response_format",
                           "tools",
                           "tool_choice",
                           "functions",
                           "function_call",
                           "parallel_tool_calls",
                           "reasoning_effort",
                           "stop_token_ids",
                           "ignore_eos",
                           "min_tokens",
                           "cache_salt",
                           "chat_template_kwargs",
                           "chat_template",
                           "add_generation_prompt",
                           "continue_final_message",
                           "echo",
                           "prompt_logprobs",
                           "best_of",
                           "suffix",
                           "documents",
                           "modalities",
                           "audio",
                           "bad_words",
                           "structured_outputs",
                           "guided_json",
                           "truncate_prompt_tokens",
                           "return_token_ids"}) {
    fields += fmt::format(R"(,"{}":null)", name);
  }
  EXPECT_EQ(chat_refusal(fields), "accepted");
  EXPECT_EQ(completion_refusal(fields), "accepted");
}

TEST(OpenAiParse, WhatClientsSendByDefault) {
  EXPECT_EQ(
      chat_refusal(R"("tools":[],"tool_choice":"auto","response_format":{"type":"text"},"parallel_tool_calls":false)"),
      "accepted");
  EXPECT_EQ(chat_refusal(R"("tool_choice":"none","logit_bias":{},"stop":[],"max_tokens":-1,"seed":-1)"), "accepted");
  EXPECT_EQ(chat_refusal(R"("stream_options":{"include_usage":true})"), "accepted");
  EXPECT_EQ(chat_request(R"("max_tokens":128000000000000)").max_tokens, INT32_MAX);
  EXPECT_EQ(chat_request(R"("max_tokens":10.0)").max_tokens, 10);
  EXPECT_EQ(completion_request(R"("best_of":1,"suffix":"")").max_tokens, kDefaultCompletionTokens);
  EXPECT_EQ(completion_request(R"("max_tokens":-1)").max_tokens, std::nullopt);
  EXPECT_EQ(completion_request(R"("seed":18446744073709551615)").seed, UINT64_MAX);
}

TEST(OpenAiParse, LmEvalHarness) {
  const auto call = parse_completion(
      R"({"model":"m","prompt":[[1,2,3],[4,5]],"echo":true,"max_tokens":0,"logprobs":1,"seed":1234,"temperature":0})");
  ASSERT_TRUE(call);
  ASSERT_EQ(call->requests.size(), 2u);
  const Request& second = call->requests[1];
  EXPECT_THAT(std::get<TokenPrompt>(second.prompt).tokens, ElementsAre(TokenId(4), TokenId(5)));
  EXPECT_EQ(second.echo, engine::Echo::kPrompt);
  EXPECT_EQ(second.logprobs, 1);
  EXPECT_EQ(second.prompt_logprobs, 1);
  EXPECT_EQ(second.max_tokens, 0);
}

TEST(OpenAiParse, PromptLogprobs) {
  EXPECT_EQ(chat_request(R"("prompt_logprobs":2)").prompt_logprobs, 2);
  EXPECT_EQ(completion_request(R"("prompt_logprobs":0)").prompt_logprobs, 0);
  EXPECT_EQ(completion_request(R"("echo":true,"logprobs":3)").prompt_logprobs, 3);
  EXPECT_EQ(completion_request(R"("echo":true)").prompt_logprobs, std::nullopt);
}

TEST(OpenAiParse, PromptForms) {
  const auto texts = parse_completion(R"({"prompt":["a","b"],"n":2})");
  ASSERT_TRUE(texts);
  EXPECT_EQ(texts->n_choices, 2);
  EXPECT_EQ(std::get<TextPrompt>(texts->requests.at(1).prompt).text, "b");
  const auto ids = parse_completion(R"({"prompt":[7,8]})");
  ASSERT_TRUE(ids);
  EXPECT_THAT(std::get<TokenPrompt>(ids->requests.at(0).prompt).tokens, ElementsAre(TokenId(7), TokenId(8)));
  for (const char* bad :
       {R"({"prompt":[]})", R"({"prompt":[[]]})", R"({"prompt":[1,"a"]})", R"({"prompt":[-1]})", R"({"prompt":{}})",
        R"({"prompt":[1.5]})", R"({"prompt":[4294967296]})", R"({"prompt":3})", R"({})", R"({"prompt":["a",[[1]]]})"}) {
    EXPECT_EQ(refusal(parse_completion(bad)), "400 prompt") << bad;
  }
}

TEST(OpenAiParse, NamesTheFieldOfAWrongValue) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"("temperature":"hot")", "400 temperature"},
      {R"("temperature":-0.1)", "400 temperature"},
      {R"("top_p":1.5)", "400 top_p"},
      {R"("top_k":-2)", "400 top_k"},
      {R"("top_k":1.5)", "400 top_k"},
      {R"("min_p":2)", "400 min_p"},
      {R"("typical_p":-1)", "400 typical_p"},
      {R"("repetition_penalty":0)", "400 repetition_penalty"},
      {R"("presence_penalty":3)", "400 presence_penalty"},
      {R"("frequency_penalty":[])", "400 frequency_penalty"},
      {R"("n":0)", "400 n"},
      {R"("n":129)", "400 n"},
      {R"("n":true)", "400 n"},
      {R"("max_tokens":"5")", "400 max_tokens"},
      {R"("max_tokens":-5)", "400 max_tokens"},
      {R"("stop":5)", "400 stop"},
      {R"("stop":[""])", "400 stop"},
      {R"("stop":[1])", "400 stop"},
      {R"("stream":"yes")", "400 stream"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "400 stream_options.include_usage"},
      {R"("seed":1.5)", "400 seed"},
      {R"("seed":"a")", "400 seed"},
      {R"("logit_bias":{"a":1})", "400 logit_bias"},
      {R"("logit_bias":{"1":101})", "400 logit_bias"},
      {R"("logit_bias":[1])", "400 logit_bias"},
      {R"("model":5)", "400 model"},
      {R"("stop_token_ids":["x"])", "400 stop_token_ids"},
      {R"("ignore_eos":1)", "400 ignore_eos"},
      {R"("min_tokens":-1)", "400 min_tokens"},
      {R"("cache_salt":"")", "400 cache_salt"},
      {R"("session_id":"")", "400 session_id"},
      {R"("session_id":5)", "400 session_id"},
      {R"("session_id":"a/b")", "400 session_id"},
      {R"("session_id":"..")", "400 session_id"},
      {R"("response_format":{"type":"json_object"})", "400 response_format"},
      {R"("response_format":"x")", "400 response_format"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}])", "400 tools"},
      {R"("tool_choice":"required")", "400 tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "400 tool_choice"},
      {R"("guided_json":{"a":1})", "400 guided_json"},
      {R"("prompt_logprobs":-1)", "400 prompt_logprobs"},
      {R"("prompt_logprobs":1,"stream":true)", "400 prompt_logprobs"},
      {R"("use_beam_search":true)", "400 use_beam_search"},
      {R"("best_of":2)", "400 best_of"},
      {R"("audio":{"voice":"x"})", "400 audio"}};
  for (const auto& [fields, expected] : cases) {
    EXPECT_EQ(chat_refusal(fields), expected) << fields;
    EXPECT_EQ(completion_refusal(fields), expected) << fields;
  }
  EXPECT_EQ(completion_refusal(R"("suffix":"x")"), "400 suffix");
  EXPECT_EQ(completion_refusal(R"("logprobs":21)"), "400 logprobs");
  EXPECT_EQ(chat_refusal(R"("logprobs":1)"), "400 logprobs");
  EXPECT_EQ(chat_refusal(R"("top_logprobs":3)"), "400 top_logprobs");
  EXPECT_EQ(chat_refusal(R"("logprobs":true,"top_logprobs":21)"), "400 top_logprobs");
  EXPECT_EQ(chat_refusal(R"("max_tokens":0)"), "400 max_tokens");
  EXPECT_EQ(chat_refusal(R"("continue_final_message":true)"), "400 continue_final_message");
  EXPECT_EQ(chat_refusal(R"("modalities":["text","audio"])"), "400 modalities");
  EXPECT_EQ(chat_refusal(R"("chat_template_kwargs":[1])"), "400 chat_template_kwargs");
}

TEST(OpenAiParse, NamesThePartOfAWrongMessage) {
  const auto said = [](const std::string& messages) { return refusal(parse_chat(R"({"messages":)" + messages + "}")); };
  EXPECT_EQ(refusal(parse_chat("{}")), "400 messages");
  EXPECT_EQ(said("[]"), "400 messages");
  EXPECT_EQ(said("\"hi\""), "400 messages");
  EXPECT_EQ(said("[1]"), "400 messages[0]");
  EXPECT_EQ(said(R"([{"content":"x"}])"), "400 messages[0].role");
  EXPECT_EQ(said(R"([{"role":"user","content":5}])"), "400 messages[0].content");
  EXPECT_EQ(
      said(
          R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"),
      "400 messages[1].content[0].type");
  EXPECT_EQ(said(R"([{"role":"user","content":[{"type":"text"}]}])"), "400 messages[0].content[0].text");
  EXPECT_EQ(said(R"([{"role":"user","content":["x"]}])"), "400 messages[0].content[0]");
}

TEST(OpenAiParse, MessagesTravelAsWritten) {
  const std::string messages = R"([{"role":"user", "content":[{"type":"text","text":"a"}], "z":1.50,"a":null}])";
  const auto call = parse_chat(R"({"messages":)" + messages +
                               R"(,"chat_template_kwargs":{"z":1,"a":2},"add_generation_prompt":false})");
  ASSERT_TRUE(call);
  EXPECT_EQ(chat_prompt(*call).messages_json, messages);
  EXPECT_EQ(chat_prompt(*call).template_kwargs_json, R"({"z":1,"a":2})");
  EXPECT_EQ(chat_prompt(*call).generation_prompt, ChatPrompt::GenerationPrompt::kOmit);
}

TEST(OpenAiParse, AByteOrderMarkIsSkipped) {
  const auto call = parse_chat("\xef\xbb\xbf" + chat_with(""));
  ASSERT_TRUE(call);
  EXPECT_EQ(chat_prompt(*call).messages_json, R"([{"role":"user","content":"hi"}])");
}

TEST(OpenAiParse, DeveloperIsSystemAndNullContentIsEmpty) {
  const auto call = parse_chat(
      R"({"messages":[{"role":"developer","content":"d"},{"role":"assistant","content":null},{"role":"assistant","content":null,"tool_calls":[]}]})");
  ASSERT_TRUE(call);
  EXPECT_EQ(
      chat_prompt(*call).messages_json,
      R"([{"content":"d","role":"system"},{"content":"","role":"assistant"},{"content":null,"role":"assistant","tool_calls":[]}])");
}

TEST(OpenAiParse, StreamOptions) {
  const auto last = parse_chat(chat_with(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_TRUE(last);
  EXPECT_EQ(last->delivery, OpenAiCall::Delivery::kStream);
  EXPECT_EQ(last->usage_chunks, OpenAiCall::UsageChunks::kLast);
  const auto each =
      parse_chat(chat_with(R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})"));
  ASSERT_TRUE(each);
  EXPECT_EQ(each->usage_chunks, OpenAiCall::UsageChunks::kEach);
}

TEST(OpenAiParse, HostileJson) {
  const auto message = [](const std::string& body) {
    const auto call = parse_chat(body);
    return call ? "accepted" : call.error().message;
  };
  EXPECT_THAT(message(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(message("{\"messages\":"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(message(chat_with("\"a\":" + std::string(200, '[') + std::string(200, ']'))), HasSubstr("nested deeper"));
  EXPECT_THAT(message(chat_with("\"temperature\":1e999")), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message(R"({"messages":[{"role":"user","content":"\ud800"}]})"), HasSubstr("not valid JSON"));
  EXPECT_EQ(chat_request(R"("temperature":0.1,"temperature":0.5)").sampling.temperature, 0.5f);
  EXPECT_EQ(refusal(parse_chat(R"({"messages":[1],"messages":[]})")), "400 messages");
  const auto twice =
      parse_chat(R"({"messages":[{"role":"user","content":"1"}],"messages":[{"role":"user","content":"2"}]})");
  ASSERT_TRUE(twice);
  EXPECT_THAT(chat_prompt(*twice).messages_json, HasSubstr("\"2\""));
}

TEST(OpenAiParse, Bounds) {
  const auto many = [](int n, const std::string& one) {
    std::string list = "[";
    for (int i = 0; i < n; ++i) list += (i ? "," : "") + one;
    return list + "]";
  };
  EXPECT_EQ(chat_refusal("\"stop\":" + many(16, "\"x\"")), "accepted");
  EXPECT_EQ(chat_refusal("\"stop\":" + many(65, "\"x\"")), "400 stop");
  EXPECT_EQ(chat_refusal("\"stop_token_ids\":" + many(257, "1")), "400 stop_token_ids");
  EXPECT_EQ(refusal(parse_completion("{\"prompt\":" + many(257, "\"x\"") + "}")), "400 prompt");
  EXPECT_EQ(refusal(parse_completion("{\"n\":128,\"prompt\":" + many(9, "\"x\"") + "}")), "400 n");
  std::string biases;
  for (int i = 0; i < 1025; ++i) biases += fmt::format("{}\"{}\":1", i ? "," : "", i);
  EXPECT_EQ(chat_refusal("\"logit_bias\":{" + biases + "}"), "400 logit_bias");
}

}  // namespace
}  // namespace pagoda::api
