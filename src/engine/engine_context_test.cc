// Context policies through a whole engine: generation past the context, what the answer says of it, its records, cancelling.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "engine/context_policy.h"
#include "engine/engine.h"
#include "engine/intake.h"
#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

using Kind = ContextPolicy::Kind;
constexpr int kContext = 96;

struct Heard {
  std::map<int, std::vector<TokenId>> tokens;
  std::map<int, std::string> text;
  std::vector<TokenLogprob> logprobs;  // of choice 0
  Finished last;                       // the last choice that ended: its usage is of all
  std::optional<Error> failed;
};

class EngineContextTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Engine> make(Kind policy = Kind::kRefuse) {
    EngineConfig config = tiny_config(tiny_model("tiny-llama"));
    config.context_tokens = kContext;
    config.context_policy.kind = policy;
    auto engine = Engine::create(config);
    EXPECT_TRUE(engine) << engine.error().to_string();
    return std::move(*engine);
  }
  static Request request_of(std::vector<TokenId> prompt, int max_tokens, Kind policy = Kind::kSinks) {
    Request request;
    request.prompt = TokenPrompt{std::move(prompt)};
    request.max_tokens = max_tokens;
    request.seed = 5;
    request.stop.end_of_text = StopParams::EndOfText::kIgnore;
    request.context_policy = ContextPolicy{.kind = policy};
    return request;
  }
  static Heard ask(Engine& engine, const Request& request) {
    const auto signals = std::make_shared<std::atomic<int>>(0);
    const Engine::Submitted submitted = engine.submit(request, [signals] {
      signals->fetch_add(1);
      signals->notify_one();
    });
    Heard heard;
    for (int n_open = request.n_choices; n_open > 0 && !heard.failed;) {
      const int before = signals->load();
      const std::vector<Event> events = submitted.stream->take();
      for (const Event& event : events) {
        if (const auto* delta = std::get_if<Delta>(&event)) {
          auto& tokens = heard.tokens[delta->choice];
          tokens.insert(tokens.end(), delta->tokens.begin(), delta->tokens.end());
          heard.text[delta->choice] += delta->text;
          if (delta->choice == 0)
            heard.logprobs.insert(heard.logprobs.end(), delta->logprobs.begin(), delta->logprobs.end());
        } else if (const auto* finished = std::get_if<Finished>(&event)) {
          heard.last = *finished;
          --n_open;
        } else if (const auto* failed = std::get_if<Failed>(&event)) {
          heard.failed = failed->error;
        }
      }
      if (events.empty()) signals->wait(before);
    }
    return heard;
  }
  static void expect_empty(const Engine& engine) {
    for (int i = 0; i < 2000 && engine.stats().kv_live_blocks > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(engine.stats().kv_live_blocks, 0u);
  }
};

// Greedy, with logprobs: what each edited list gives as a prompt of its own.
TEST_F(EngineContextTest, GoesOnAsTheEditedPromptWould) {
  const auto engine = make();
  Request request = request_of(random_tokens(1, 120), 200);
  request.sampling.temperature = 0;
  request.logprobs = 5;
  const Heard whole = ask(*engine, request);
  ASSERT_FALSE(whole.failed) << whole.failed->to_string();
  ASSERT_EQ(whole.tokens.at(0).size(), 200u);
  EXPECT_EQ(whole.last.reason, FinishReason::kLength);

  std::vector<TokenId> all = random_tokens(1, 120);
  all.insert(all.end(), whole.tokens.at(0).begin(), whole.tokens.at(0).end());
  int n_edits = 0;
  for (size_t at = 120, n = 0; at < all.size(); at += n) {
    const ContextEdit edit = drop_window(std::span(all).first(at), 4, kContext, kContext - 1);
    n = std::min(all.size() - at, kContext - edit.tokens.size());
    Request fresh = request_of(edit.tokens, static_cast<int>(n), Kind::kRefuse);
    fresh.sampling.temperature = 0;
    fresh.logprobs = 5;
    fresh.cache_salt = "fresh";
    const Heard part = ask(*engine, fresh);
    ASSERT_FALSE(part.failed) << part.failed->to_string();
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(part.tokens.at(0)[i], all[at + i]) << at + i;
      const TokenLogprob &a = part.logprobs.at(i), &b = whole.logprobs.at(at - 120 + i);
      ASSERT_EQ(a.logprob, b.logprob);
      for (size_t k = 0; k < 5; ++k) ASSERT_EQ(a.top.at(k).logprob, b.top.at(k).logprob);
    }
    ++n_edits;
  }
  const ContextUsage& usage = whole.last.usage.context;
  EXPECT_EQ(usage.policy, Kind::kSinks);
  EXPECT_EQ(usage.edits, n_edits);
  EXPECT_EQ(usage.dropped_tokens, 46 * n_edits);
  EXPECT_EQ(whole.last.usage.prompt_tokens, 120 - 46);
  EXPECT_EQ(whole.last.usage.completion_tokens, 200);
  expect_empty(*engine);
  const auto record = engine->records().requests.pop();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->context_edits, n_edits);
  EXPECT_EQ(record->dropped_tokens, 46 * n_edits);
}

TEST_F(EngineContextTest, ChoicesAreEditedEachForItself) {
  const auto engine = make();
  Request request = request_of(random_tokens(2, 80), 150);
  request.n_choices = 3;
  const Heard all = ask(*engine, request);
  ASSERT_EQ(all.tokens.size(), 3u);
  EXPECT_NE(all.tokens.at(0), all.tokens.at(1));
  EXPECT_EQ(all.last.usage.context.edits, 3 * 3);
  EXPECT_EQ(all.last.usage.context.dropped_tokens, 3 * 3 * 46);
  EXPECT_LE(all.last.usage.cached_tokens, 80);
  Request one = request;
  one.n_choices = 1;
  EXPECT_EQ(ask(*engine, one).tokens.at(0), all.tokens.at(0));
  expect_empty(*engine);
}

// The sampler's state is the generation's, not the list's.
TEST_F(EngineContextTest, PenaltiesRememberWhatWasDropped) {
  const auto engine = make();
  Request request = request_of(random_tokens(3, 20), 250);
  request.sampling.temperature = 0;
  request.sampling.presence_penalty = 2;
  request.sampling.frequency_penalty = 2;
  request.sampling.repetition_penalty = 1000;
  const Heard heard = ask(*engine, request);
  std::map<TokenId, int> times;
  for (const TokenId token : heard.tokens.at(0)) ++times[token];
  EXPECT_EQ(times.size(), 250u);  // none came twice
}

TEST_F(EngineContextTest, WithoutMaxTokensAnAnswerIsAsLongAsTheContext) {
  const auto engine = make(Kind::kSinks);
  Request request = request_of(random_tokens(4, 50), 0);
  request.max_tokens.reset();
  request.context_policy.reset();
  const Heard heard = ask(*engine, request);
  EXPECT_EQ(heard.tokens.at(0).size(), static_cast<size_t>(kContext));
  EXPECT_EQ(heard.last.usage.context.edits, 2);
  EXPECT_EQ(heard.last.reason, FinishReason::kLength);
}

TEST_F(EngineContextTest, TurnsAreDroppedAndThenTheAnswersOwnBeginning) {
  const auto engine = make(Kind::kDropTurns);
  Request request = request_of({}, 300);
  request.context_policy.reset();
  request.sampling.temperature = 0;
  std::string messages = R"([{"role":"system","content":"s"})";
  for (int i = 0; i < 12; ++i) messages += R"(,{"role":"user","content":"abcdef"})";
  request.prompt = ChatPrompt{messages + "]", {}, {}, ChatPrompt::GenerationPrompt::kAdd};
  const Heard heard = ask(*engine, request);
  ASSERT_FALSE(heard.failed) << heard.failed->to_string();
  EXPECT_EQ(heard.tokens.at(0).size(), 300u);
  const ContextUsage& usage = heard.last.usage.context;
  EXPECT_EQ(usage.policy, Kind::kDropTurns);
  EXPECT_EQ(usage.dropped_turns, 11);
  EXPECT_GT(usage.edits, 4);
  EXPECT_LT(heard.last.usage.prompt_tokens, kContext);
  EXPECT_EQ(ask(*engine, request).tokens, heard.tokens);
  expect_empty(*engine);
}

// Behind the edit it is a request whose prompt is the shorter chat and the answer so far.
TEST_F(EngineContextTest, DroppedTurnsLeaveAFreshRequest) {
  const auto engine = make();
  Request request = request_of({}, 0, Kind::kDropTurns);
  request.sampling.temperature = 0;
  request.logprobs = 5;
  std::string messages = R"([{"role":"system","content":"s"})";
  for (int i = 0; i < 8; ++i) messages += R"(,{"role":"user","content":"a"})";
  request.prompt = ChatPrompt{messages + "]", {}, {}, ChatPrompt::GenerationPrompt::kAdd};
  const EngineConfig config = tiny_config(tiny_model("tiny-llama"));
  const auto served = ServedModel::make(*weights::Gguf::open(config.model_path), config);
  const int n_prompt = static_cast<int>(tokenize_prompt(*served, request.prompt)->size());
  ASSERT_LT(n_prompt, kContext);
  const int n_before = kContext - n_prompt;
  request.max_tokens = n_before + 20;
  const Heard whole = ask(*engine, request);
  ASSERT_FALSE(whole.failed) << whole.failed->to_string();
  ASSERT_EQ(whole.last.usage.context.edits, 1);

  std::vector<TokenId> list = *tokenize_prompt(*served, request.prompt, whole.last.usage.context.dropped_turns);
  EXPECT_EQ(static_cast<int>(list.size()) + whole.last.usage.context.dropped_tokens, n_prompt);
  list.insert(list.end(), whole.tokens.at(0).begin(), whole.tokens.at(0).begin() + n_before);
  Request fresh = request_of(list, 20, Kind::kRefuse);
  fresh.sampling.temperature = 0;
  fresh.logprobs = 5;
  fresh.cache_salt = "fresh";
  const Heard part = ask(*engine, fresh);
  ASSERT_EQ(part.tokens.at(0).size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    const size_t at = static_cast<size_t>(n_before) + i;
    EXPECT_EQ(part.tokens.at(0)[i], whole.tokens.at(0)[at]);
    for (size_t k = 0; k < 5; ++k) EXPECT_EQ(part.logprobs.at(i).top[k].logprob, whole.logprobs.at(at).top[k].logprob);
  }
}

TEST_F(EngineContextTest, CancelledWhileItIsEdited) {
  const auto engine = make();
  for (int round = 0; round < 40; ++round) {
    const Engine::Submitted endless = engine->submit(request_of(random_tokens(9, 80), 1'000'000), [] {});
    std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
    engine->cancel(endless.id);
  }
  expect_empty(*engine);
  for (int i = 0; i < 2000 && engine->stats().running + engine->stats().waiting > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(engine->stats().running, 0);
}

// With prompt logprobs the first prefill reuses nothing; what comes behind an edit has none, and may.
TEST_F(EngineContextTest, PromptLogprobsAreOfTheFirstList) {
  const auto engine = make();
  Request request = request_of(random_tokens(6, 120), 100);
  request.prompt_logprobs = 1;
  request.logprobs = 0;
  const Heard heard = ask(*engine, request);
  EXPECT_EQ(heard.tokens.at(0).size(), 74u + 100);
  EXPECT_EQ(heard.logprobs.size(), 74u + 100);
  EXPECT_EQ(heard.last.usage.context.edits, 3);
}

}  // namespace
}  // namespace pagoda::engine
