#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "api/openai.h"

namespace pagoda::api {
namespace {

using engine::Accepted;
using engine::Delta;
using engine::Finished;
using engine::FinishReason;
using engine::TokenLogprob;
using engine::Usage;
using testing::HasSubstr;

OpenAiCall call_of(OpenAiCall::Kind kind, int n_prompts = 1, int n_choices = 1) {
  OpenAiCall call;
  call.kind = kind;
  call.n_choices = n_choices;
  call.requests.resize(static_cast<size_t>(n_prompts));
  for (auto& request : call.requests) request.n_choices = n_choices;
  return call;
}

AnswerHead head_of(const char* id) { return {id, 1700000000, "tiny", "fp"}; }

Delta delta(int choice, const char* text, int n_tokens = 1) {
  Delta made;
  made.choice = choice;
  made.text = text;
  made.tokens.assign(static_cast<size_t>(n_tokens), TokenId(9));
  return made;
}

Finished finished(int choice, FinishReason reason, Usage usage) {
  Finished made;
  made.choice = choice;
  made.reason = reason;
  made.usage = usage;
  return made;
}

TokenLogprob token(const char* bytes, std::optional<float> logprob, std::vector<TokenLogprob::Alternative> top = {}) {
  return {TokenId(1), bytes, logprob, std::move(top)};
}

constexpr const char* kUsage =
    R"({"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":0}})";

TEST(OpenAiRender, WholeChat) {
  OpenAiAnswer answer(call_of(OpenAiCall::Kind::kChat), head_of("chatcmpl-1"));
  answer.add(0, Accepted{3});
  answer.add(0, delta(0, "Hel"));
  answer.add(0, delta(0, "lo \"\n"));
  EXPECT_FALSE(answer.is_complete());
  answer.add(0, finished(0, FinishReason::kStop, {3, 2, 1}));
  EXPECT_TRUE(answer.is_complete());
  EXPECT_EQ(
      answer.json(),
      std::string(
          R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"tiny","system_fingerprint":"fp",)") +
          R"("choices":[{"index":0,"message":{"role":"assistant","content":"Hello \"\n","refusal":null,"annotations":[]},)" +
          R"("logprobs":null,"finish_reason":"stop","stop_reason":null}],"usage":)" + kUsage + "}");
}

TEST(OpenAiRender, SaysWhatAContextPolicyDropped) {
  using Kind = engine::ContextPolicy::Kind;
  const Usage usage{3, 2, 1, {.policy = Kind::kSinks, .edits = 2, .dropped_tokens = 92, .dropped_turns = 0}};
  constexpr const char* kContext = R"("context":{"policy":"sinks","edits":2,"dropped_tokens":92,"dropped_turns":0})";
  OpenAiAnswer answer(call_of(OpenAiCall::Kind::kChat), head_of("chatcmpl-1"));
  answer.add(0, finished(0, FinishReason::kStop, usage));
  EXPECT_EQ(nlohmann::json::parse(answer.json())["usage"]["context"], nlohmann::json::parse(kContext + 10));
  OpenAiStream stream(call_of(OpenAiCall::Kind::kChat), head_of("chatcmpl-1"));
  EXPECT_THAT(stream.frames(0, finished(0, FinishReason::kStop, usage)),
              HasSubstr(std::string(R"("stop_reason":null}],)") + kContext + "}"));

  UsageSum sum(call_of(OpenAiCall::Kind::kCompletion, 3));
  sum.add(0, finished(0, FinishReason::kStop,
                      {1, 1, 0, {.policy = Kind::kDropTurns, .edits = 1, .dropped_tokens = 5, .dropped_turns = 2}}));
  sum.add(1, finished(0, FinishReason::kStop,
                      {1, 1, 0, {.policy = Kind::kDropTurns, .edits = 2, .dropped_tokens = 7, .dropped_turns = 1}}));
  EXPECT_EQ(sum.total().context.policy, Kind::kDropTurns);
  EXPECT_EQ(sum.total().context.edits, 3);
  EXPECT_EQ(sum.total().context.dropped_tokens, 12);
  EXPECT_EQ(sum.total().context.dropped_turns, 2);
}

TEST(OpenAiRender, WhatWasDroppedIsKnownBeforeTheEnd) {
  using Kind = engine::ContextPolicy::Kind;
  UsageSum sum(call_of(OpenAiCall::Kind::kCompletion, 1));
  sum.add(0, engine::Accepted{9, {.policy = Kind::kSinks, .edits = 1, .dropped_tokens = 5, .dropped_turns = 0}});
  EXPECT_EQ(sum.total().context.dropped_tokens, 5);
  sum.add(0, engine::Edited{{.policy = Kind::kSinks, .edits = 2, .dropped_tokens = 8, .dropped_turns = 0}});
  EXPECT_EQ(sum.total().context.edits, 2);
  EXPECT_EQ(sum.total().context.dropped_tokens, 8);
  EXPECT_EQ(sum.total().prompt_tokens, 9);
}

TEST(OpenAiRender, WholeCompletionOfSeveralPromptsAndChoices) {
  OpenAiAnswer answer(call_of(OpenAiCall::Kind::kCompletion, 2, 2), head_of("cmpl-1"));
  for (int prompt : {1, 0}) {
    answer.add(prompt, Accepted{3});
    for (int choice : {1, 0}) answer.add(prompt, delta(choice, fmt::format("{}{}", prompt, choice).c_str()));
    for (int choice : {1, 0}) answer.add(prompt, finished(choice, FinishReason::kLength, {3, 2 - choice, 1}));
  }
  const auto json = nlohmann::json::parse(answer.json());
  ASSERT_EQ(json["choices"].size(), 4u);
  const char* texts[] = {"00", "01", "10", "11"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], texts[i]);
    EXPECT_EQ(json["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(json["usage"]["completion_tokens"], 4);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST(OpenAiRender, ChatLogprobs) {
  OpenAiCall call = call_of(OpenAiCall::Kind::kChat);
  call.requests[0].logprobs = 2;
  OpenAiAnswer answer(call, head_of("c"));
  Delta one = delta(0, "é");
  one.logprobs = {token("\xc3", -0.5f, {{TokenId(1), "\xc3", -0.5f}, {TokenId(2), "x", -1.25f}}),
                  token("\xa9", -0.125f)};
  answer.add(0, one);
  answer.add(0, finished(0, FinishReason::kStop, {}));
  const auto json = nlohmann::json::parse(answer.json());
  EXPECT_EQ(json["choices"][0]["logprobs"].dump(),
            "{\"content\":[{\"bytes\":[195],\"logprob\":-0.5,\"token\":\"\xef\xbf\xbd\",\"top_logprobs\":[{\"bytes\":["
            "195],\"logprob\":-0.5,"
            "\"token\":\"\xef\xbf\xbd\"},{\"bytes\":[120],\"logprob\":-1.25,\"token\":\"x\"}]},{\"bytes\":[169],"
            "\"logprob\":-0.125,\"token\":"
            "\"\xef\xbf\xbd\",\"top_logprobs\":[]}],\"refusal\":null}");
}

TEST(OpenAiRender, LegacyLogprobs) {
  OpenAiCall call = call_of(OpenAiCall::Kind::kCompletion);
  call.requests[0].logprobs = 1;
  OpenAiAnswer answer(call, head_of("c"));
  Delta echo = delta(0, "hé");
  echo.logprobs = {token("h", std::nullopt), token("\xc3", -1.0f, {{TokenId(7), "\xc3", -0.5f}}), token("\xa9", -2.0f)};
  answer.add(0, echo);
  answer.add(0, finished(0, FinishReason::kLength, {}));
  const auto json = nlohmann::json::parse(answer.json())["choices"][0]["logprobs"];
  EXPECT_EQ(json["tokens"].dump(), R"(["h","bytes:\\xc3","bytes:\\xa9"])");
  EXPECT_EQ(json["token_logprobs"].dump(), "[null,-1.0,-2.0]");
  EXPECT_EQ(json["text_offset"].dump(), "[0,1,2]");
  EXPECT_TRUE(json["top_logprobs"][0].is_null());
  EXPECT_EQ(json["top_logprobs"][2].size(), 1u);
}

TEST(OpenAiRender, PromptLogprobsComeApartFromTheAnswers) {
  for (const auto kind : {OpenAiCall::Kind::kChat, OpenAiCall::Kind::kCompletion}) {
    OpenAiCall call = call_of(kind);
    call.prompt_logprobs = OpenAiCall::PromptLogprobs::kShown;
    call.token_ids = OpenAiCall::TokenIds::kShown;
    call.requests[0].prompt_logprobs = 1;
    call.requests[0].logprobs = 0;
    OpenAiAnswer answer(call, head_of("c"));
    answer.add(0, Accepted{2});
    Delta all = delta(0, "out", 3);  // the prompt's two and one of the answer, merged on the way
    all.logprobs = {token("p", std::nullopt), token("q", -2.0f, {{TokenId(7), "x", -0.5f}}), token("out", -1.0f)};
    answer.add(0, all);
    EXPECT_EQ(answer.usage().completion_tokens, 1);
    answer.add(0, finished(0, FinishReason::kLength, {2, 1, 0}));
    const auto json = nlohmann::json::parse(answer.json());
    const auto& choice = json["choices"][0];
    const auto& shown = kind == OpenAiCall::Kind::kChat ? json["prompt_logprobs"] : choice["prompt_logprobs"];
    EXPECT_EQ(
        shown.dump(),
        R"([null,{"1":{"decoded_token":"q","logprob":-2.0,"rank":null},"7":{"decoded_token":"x","logprob":-0.5,"rank":1}}])");
    EXPECT_EQ(choice["token_ids"].size(), 1u);
    const auto& own = kind == OpenAiCall::Kind::kChat ? choice["logprobs"]["content"] : choice["logprobs"]["tokens"];
    EXPECT_EQ(own.size(), 1u);
  }
}

TEST(OpenAiRender, StopReasonsAndTokenIds) {
  OpenAiCall call = call_of(OpenAiCall::Kind::kCompletion, 1, 2);
  call.token_ids = OpenAiCall::TokenIds::kShown;
  call.requests[0].stop.token_ids = {TokenId(5)};
  OpenAiAnswer answer(call, head_of("c"));
  answer.add(0, delta(0, "a", 2));
  Finished by_string = finished(0, FinishReason::kStop, {});
  by_string.stop_string = "###";
  Finished by_token = finished(1, FinishReason::kStop, {});
  by_token.stop_token = TokenId(5);
  answer.add(0, by_string);
  answer.add(0, by_token);
  const auto choices = nlohmann::json::parse(answer.json())["choices"];
  EXPECT_EQ(choices[0]["stop_reason"], "###");
  EXPECT_EQ(choices[0]["token_ids"].dump(), "[9,9]");
  EXPECT_EQ(choices[1]["stop_reason"], 5);
}

TEST(OpenAiRender, ChatStream) {
  OpenAiCall call = call_of(OpenAiCall::Kind::kChat);
  call.usage_chunks = OpenAiCall::UsageChunks::kLast;
  OpenAiStream stream(call, head_of("chatcmpl-1"));
  const std::string prefix =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"tiny","system_fingerprint":"fp","choices":[)";
  EXPECT_EQ(
      stream.frames(0, Accepted{3}),
      prefix +
          R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null})"
          "\n\n");
  EXPECT_EQ(stream.frames(0, delta(0, "Hi")),
            prefix + R"({"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}],"usage":null})"
                     "\n\n");
  EXPECT_EQ(stream.frames(0, delta(0, "")), "");
  EXPECT_EQ(stream.frames(0, finished(0, FinishReason::kLength, {3, 2, 1})),
            prefix +
                R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":null})"
                "\n\n");
  EXPECT_TRUE(stream.is_complete());
  EXPECT_EQ(stream.end(), prefix + R"(],"usage":)" + kUsage + "}\n\ndata: [DONE]\n\n");
}

TEST(OpenAiRender, CompletionStreamWithOffsets) {
  OpenAiCall call = call_of(OpenAiCall::Kind::kCompletion);
  call.requests[0].logprobs = 0;
  OpenAiStream stream(call, head_of("cmpl-1"));
  EXPECT_EQ(stream.frames(0, Accepted{1}), "");
  Delta one = delta(0, "ab");
  one.logprobs = {token("a", -1.0f), token("b", -1.0f)};
  EXPECT_THAT(stream.frames(0, one), HasSubstr(R"("text_offset":[0,1]})"));
  EXPECT_THAT(stream.frames(0, one), HasSubstr(R"("text_offset":[2,3]})"));
  EXPECT_THAT(stream.frames(0, finished(0, FinishReason::kStop, {})),
              HasSubstr(R"({"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null})"));
  EXPECT_EQ(stream.end(), "data: [DONE]\n\n");
}

TEST(OpenAiRender, ContinuousUsageCountsGeneratedTokensOnly) {
  OpenAiCall call = call_of(OpenAiCall::Kind::kCompletion);
  call.usage_chunks = OpenAiCall::UsageChunks::kEach;
  call.requests[0].echo = engine::Echo::kPrompt;
  OpenAiStream stream(call, head_of("c"));
  stream.frames(0, Accepted{3});
  EXPECT_THAT(stream.frames(0, delta(0, "one two three", 3)), HasSubstr(R"("completion_tokens":0,"total_tokens":3)"));
  EXPECT_THAT(stream.frames(0, delta(0, "four", 1)), HasSubstr(R"("completion_tokens":1,"total_tokens":4)"));
}

TEST(OpenAiRender, ErrorFrameAndModels) {
  EXPECT_EQ(
      openai_error_frame(Error{ErrorCode::kUnavailable, "gone", ""}),
      "data: "
      "{\"error\":{\"message\":\"gone\",\"type\":\"unavailable_error\",\"param\":null,\"code\":\"unavailable\"}}\n\n");
  EXPECT_EQ(openai_models({}), R"({"object":"list","data":[]})");
  const auto list =
      nlohmann::json::parse(openai_models({{"a", "a.gguf", 5, 10, 20, 30, 40, 50}, {"b", "", 0, 0, 0, 0, 0, 0}}));
  EXPECT_EQ(list["data"][0]["max_model_len"], 10);
  EXPECT_EQ(list["data"][0]["meta"]["n_ctx_train"], 20);
  EXPECT_EQ(list["data"][1]["id"], "b");
}

}  // namespace
}  // namespace pagoda::api
