#include "engine/generation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

// Generations fed with logits of our making, one token at a time.
class GenerationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const EngineConfig config = tiny_config(tiny_model("tiny-llama"));
    const auto gguf = weights::Gguf::open(config.model_path);
    ASSERT_TRUE(gguf) << gguf.error().to_string();
    auto model = ServedModel::make(*gguf, config);
    ASSERT_TRUE(model) << model.error().to_string();
    served_model = std::make_unique<ServedModel>(std::move(*model));
  }
  static void TearDownTestSuite() { served_model.reset(); }

  static std::vector<TokenId> tokens_of(std::string_view text) {
    return served_model->tokenizer.encode(text, {text::BosMode::kOff, text::SpecialMode::kParse});
  }

  void start(Request request, std::string_view prompt = "the cat", int max_tokens = 100) {
    stream_ = std::make_shared<OutputStream>([] {});
    active_ = std::make_shared<ActiveRequest>();
    active_->request = std::move(request);
    active_->stream = stream_;
    active_->prompt = tokens_of(prompt);
    active_->max_tokens = max_tokens;
    active_->unfinished = 1;
    generation_ = std::make_unique<Generation>(active_, 0, *served_model);
    position_ = static_cast<int>(active_->prompt.size()) - 1;
  }
  // Logits of one row that make `token` near certain, and the next id second.
  std::vector<float> row_of(TokenId token) const {
    std::vector<float> logits(static_cast<size_t>(served_model->info.vocab_size), 0.0f);
    logits[static_cast<size_t>(token.value)] = 50.0f;
    logits[static_cast<size_t>(token.value + 1) % logits.size()] = 1.0f;
    return logits;
  }
  // A step whose last row wants `token`; what was sampled, or nothing.
  std::optional<TokenId> feed(TokenId token) {
    const bool greedy = generation_->mode() == models::SampleMode::kGreedy;
    const std::vector<float> logits = row_of(token);
    const SampleResult result{0, token, greedy ? std::span<const float>() : std::span<const float>(logits)};
    const sched::SeqRows rows{sched::SeqId(1), position_++, 1, 1, sched::Sampling::kLastRow};
    const sched::StepOutcome outcome = generation_->read(rows, {&result, 1}, sampler_);
    if (generation_->finished()) generation_->say_finished(0);
    if (outcome.kind != sched::StepOutcome::Kind::kSampled) return std::nullopt;
    return outcome.token;
  }
  // All tokens of text, until it has finished; how many were taken.
  int say(std::string_view text) {
    int n = 0;
    for (const TokenId token : tokens_of(text)) {
      if (generation_->finished()) break;
      EXPECT_EQ(feed(token), token);
      ++n;
    }
    return n;
  }

  struct Heard {
    std::string text;
    std::vector<TokenId> tokens;
    std::vector<TokenLogprob> logprobs;
    std::optional<Finished> finished;
  };
  Heard hear() {
    Heard heard;
    for (Event& event : stream_->take()) {
      if (auto* delta = std::get_if<Delta>(&event)) {
        EXPECT_FALSE(heard.finished) << "a delta after the end";
        heard.text += delta->text;
        heard.tokens.insert(heard.tokens.end(), delta->tokens.begin(), delta->tokens.end());
        std::ranges::move(delta->logprobs, std::back_inserter(heard.logprobs));
      } else if (auto* finished = std::get_if<Finished>(&event)) {
        EXPECT_FALSE(heard.finished) << "it ended twice";
        heard.finished = *finished;
      }
    }
    return heard;
  }

  static inline std::unique_ptr<ServedModel> served_model;
  Sampler sampler_{kernels::kernel_table(kernels::best_isa())};
  std::shared_ptr<OutputStream> stream_;
  std::shared_ptr<ActiveRequest> active_;
  std::unique_ptr<Generation> generation_;
  int position_ = 0;
};

Request greedy() {
  Request request;
  request.sampling.temperature = 0;
  return request;
}

TEST_F(GenerationTest, EndOfTextStopsAndSaysNothing) {
  start(greedy());
  say("hello");
  const TokenId eos = *served_model->tokenizer.eos();
  EXPECT_EQ(feed(eos), eos);
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "hello");
  ASSERT_TRUE(heard.finished);
  EXPECT_EQ(heard.finished->reason, FinishReason::kStop);
  EXPECT_EQ(heard.finished->stop_token, eos);
  EXPECT_EQ(heard.finished->usage.completion_tokens, static_cast<int>(tokens_of("hello").size()) + 1);
  EXPECT_EQ(heard.tokens.size(), tokens_of("hello").size() + 1);
  EXPECT_EQ(generation_->finished(), FinishReason::kStop);
}

TEST_F(GenerationTest, IgnoredEndOfTextGoesOn) {
  Request request = greedy();
  request.stop.end_of_text = StopParams::EndOfText::kIgnore;
  start(request);
  say("a");
  feed(*served_model->tokenizer.eos());
  say("b");
  EXPECT_FALSE(generation_->finished());
  EXPECT_EQ(hear().text, "ab");
}

TEST_F(GenerationTest, MaxTokensEndsWithLength) {
  start(greedy(), "the cat", 3);
  say("xyzxyz");
  const Heard heard = hear();
  ASSERT_TRUE(heard.finished);
  EXPECT_EQ(heard.finished->reason, FinishReason::kLength);
  EXPECT_EQ(heard.tokens.size(), 3u);
}

TEST_F(GenerationTest, StopStringsMatchOverTokenBorders) {
  Request request = greedy();
  request.stop.strings = {"\n\nQ:", "zzz"};
  start(request);
  say("answer\n\nQ: more");
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "answer");
  ASSERT_TRUE(heard.finished);
  EXPECT_EQ(heard.finished->reason, FinishReason::kStop);
  EXPECT_EQ(heard.finished->stop_string, "\n\nQ:");
  EXPECT_FALSE(heard.finished->stop_token);
}

TEST_F(GenerationTest, WhatMayBecomeAStopIsHeldAndThenReleased) {
  Request request = greedy();
  request.stop.strings = {"END"};
  start(request);
  say("xE");
  EXPECT_EQ(hear().text, "x");
  say("N");
  EXPECT_EQ(hear().text, "");
  say("O");
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "ENO");
  EXPECT_EQ(heard.tokens.size(), 3u);  // those that the text stands for
  say("E");
  feed(*served_model->tokenizer.eos());
  EXPECT_EQ(hear().text, "E");
}

TEST_F(GenerationTest, HalfACharacterWaitsForItsRest) {
  start(greedy());
  const std::vector<TokenId> euro = tokens_of("\u20ac");
  ASSERT_EQ(euro.size(), 3u);
  feed(euro[0]);
  feed(euro[1]);
  EXPECT_EQ(hear().text, "");
  feed(euro[2]);
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "\u20ac");
  EXPECT_EQ(heard.tokens, euro);
  feed(euro[0]);
  feed(*served_model->tokenizer.eos());
  EXPECT_EQ(hear().text, "\uFFFD");
}

TEST_F(GenerationTest, StopTokensAreNotSaid) {
  Request request = greedy();
  request.stop.token_ids = tokens_of("q");
  ASSERT_EQ(request.stop.token_ids.size(), 1u);
  start(request);
  say("ab");
  feed(request.stop.token_ids[0]);
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "ab");
  ASSERT_TRUE(heard.finished);
  EXPECT_EQ(heard.finished->stop_token, request.stop.token_ids[0]);
}

TEST_F(GenerationTest, MinTokensBansEveryEnd) {
  Request request = greedy();
  request.stop.min_tokens = 2;
  request.stop.token_ids = tokens_of("q");
  start(request);
  EXPECT_EQ(generation_->mode(), models::SampleMode::kLogits);
  const TokenId eos = *served_model->tokenizer.eos();
  EXPECT_NE(*feed(eos), eos);
  EXPECT_NE(*feed(request.stop.token_ids[0]), request.stop.token_ids[0]);
  EXPECT_FALSE(generation_->finished());
  EXPECT_EQ(generation_->mode(), models::SampleMode::kGreedy);
  EXPECT_EQ(*feed(eos), eos);
  EXPECT_TRUE(generation_->finished());
}

TEST_F(GenerationTest, LogprobsComeWithEveryToken) {
  Request request = greedy();
  request.logprobs = 2;
  start(request);
  EXPECT_EQ(generation_->mode(), models::SampleMode::kLogits);
  const std::vector<TokenId> euro = tokens_of("\u20ac");
  for (const TokenId token : euro) feed(token);
  const Heard heard = hear();
  ASSERT_EQ(heard.logprobs.size(), 3u);
  EXPECT_EQ(heard.tokens, euro);
  std::string bytes;
  for (const TokenLogprob& entry : heard.logprobs) {
    EXPECT_NEAR(*entry.logprob, 0, 1e-4);
    ASSERT_EQ(entry.top.size(), 2u);
    EXPECT_EQ(entry.top[0].token, entry.token);
    EXPECT_EQ(entry.top[0].bytes, entry.bytes);
    EXPECT_NEAR(entry.top[1].logprob, -49, 0.1);
    bytes += entry.bytes;
  }
  EXPECT_EQ(bytes, "\u20ac");
}

// A prompt's rows come in chunks; position p judges token p + 1.
TEST_F(GenerationTest, EchoWithPromptLogprobs) {
  Request request = greedy();
  request.echo = Echo::kPrompt;
  request.prompt_logprobs = 1;
  request.logprobs = 1;
  start(request, "the cat sat");
  const std::vector<TokenId> prompt = active_->prompt;
  const int n = static_cast<int>(prompt.size());
  ASSERT_GT(n, 3);
  std::vector<std::vector<float>> logits;
  std::vector<SampleResult> results;
  for (int i = 0; i < n; ++i)
    logits.push_back(row_of(i + 1 < n ? prompt[static_cast<size_t>(i + 1)] : tokens_of("x")[0]));
  for (int i = 0; i < n; ++i) results.push_back({i, TokenId(0), logits[static_cast<size_t>(i)]});
  const std::span<const SampleResult> all(results);
  generation_->read({sched::SeqId(1), 0, 2, 2, sched::Sampling::kNone}, all.first(2), sampler_);
  EXPECT_TRUE(hear().tokens.empty());
  generation_->read({sched::SeqId(1), 2, n - 2, n - 2, sched::Sampling::kLastRow}, all.subspan(2), sampler_);
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "the cat satx");
  ASSERT_EQ(heard.logprobs.size(), static_cast<size_t>(n) + 1);
  EXPECT_EQ(heard.tokens.size(), heard.logprobs.size());
  EXPECT_FALSE(heard.logprobs[0].logprob);
  for (size_t i = 1; i < heard.logprobs.size(); ++i) {
    EXPECT_EQ(heard.logprobs[i].token, heard.tokens[i]);
    EXPECT_NEAR(*heard.logprobs[i].logprob, 0, 1e-4) << i;
  }
}

TEST_F(GenerationTest, NoTokensAreAskedFor) {
  Request request = greedy();
  request.echo = Echo::kPrompt;
  start(request, "the cat", 0);
  EXPECT_EQ(feed(TokenId(20)), std::nullopt);
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "the cat");
  ASSERT_TRUE(heard.finished);
  EXPECT_EQ(heard.finished->reason, FinishReason::kLength);
  EXPECT_EQ(heard.finished->usage.completion_tokens, 0);
}

TEST_F(GenerationTest, TheSchedulersEndSaysWhatWasHeld) {
  Request request = greedy();
  request.stop.strings = {"END"};
  start(request);
  say("xEN");
  generation_->end(FinishReason::kLength);
  generation_->say_finished(0);
  const Heard heard = hear();
  EXPECT_EQ(heard.text, "xEN");
  EXPECT_EQ(heard.tokens.size(), 3u);
  ASSERT_TRUE(heard.finished);
  EXPECT_EQ(heard.finished->reason, FinishReason::kLength);
}

TEST_F(GenerationTest, RepetitionPenaltyCountsThePrompt) {
  Request request = greedy();
  request.sampling.repetition_penalty = 1e6f;
  start(request, "q");
  const TokenId q = tokens_of("q")[0];
  EXPECT_NE(*feed(q), q);
}

}  // namespace
}  // namespace pagoda::engine
