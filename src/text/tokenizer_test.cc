#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pagoda::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> values(const std::vector<TokenId>& ids) {
  std::vector<int32_t> out;
  for (const TokenId id : ids) out.push_back(id.value);
  return out;
}

// ids: 0 <unk> 1 <s> 2 </s> 3 <0x0A> 4 <0xC3> 5 ▁ 6 a 7 b 8 ▁a 9 ab 10 ▁ab 11 <end_of_turn> 12 <tag> 13 <0xA9>
struct Scored {
  std::vector<std::string_view> tokens = {"<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>",        "▁",     "a",
                                          "b",     "▁a",  "ab",   "▁ab",    "<end_of_turn>", "<tag>", "<0xA9>"};
  std::vector<int32_t> types = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4, 6};
  std::vector<float> scores = {0, 0, 0, 0, 0, -9, -9, -9, -2, -1, -3, 0, 0, 0};
  Vocabulary vocabulary;
  Scored() {
    vocabulary.model = "llama";
    vocabulary.tokens = tokens;
    vocabulary.types = types;
    vocabulary.scores = scores;
  }
};

// ids: a b c Ġ ab Ġab <|endoftext|> <tool> abc
struct ByteLevel {
  std::vector<std::string_view> tokens = {"a", "b", "c", "Ġ", "ab", "Ġab", "<|endoftext|>", "<tool>", "abc", "Ã"};
  std::vector<int32_t> types = {1, 1, 1, 1, 1, 1, 1, 4, 1, 1};
  std::vector<std::string_view> merges = {"a b", "Ġ ab", "Ġ a"};
  Vocabulary vocabulary;
  ByteLevel() {
    vocabulary.model = "gpt2";
    vocabulary.pre = "gpt-2";
    vocabulary.tokens = tokens;
    vocabulary.types = types;
    vocabulary.merges = merges;
    vocabulary.bos = vocabulary.eos = TokenId{6};
  }
};

TEST(Tokenizer, ScoredMergingTakesTheBestPairFirst) {
  const Scored s;
  const auto t = Tokenizer::create(s.vocabulary);
  ASSERT_TRUE(t);
  EXPECT_THAT(values(t->encode("ab")), ElementsAre(1, 10));  // "▁ab": first a+b (-1), then ▁+ab
  EXPECT_THAT(values(t->encode("aa")), ElementsAre(1, 8, 6));
  EXPECT_THAT(values(t->encode("\n\xC3\xA9z")), ElementsAre(1, 5, 3, 4, 13, 0));  // bytes, then unknown
  EXPECT_THAT(values(t->encode("")), ElementsAre(1));
}

TEST(Tokenizer, BosModes) {
  Scored s;
  s.vocabulary.add_bos = false;
  s.vocabulary.add_eos = true;
  const auto t = Tokenizer::create(s.vocabulary);
  ASSERT_TRUE(t);
  EXPECT_FALSE(t->adds_bos());
  EXPECT_THAT(values(t->encode("ab")), ElementsAre(10, 2));
  EXPECT_THAT(values(t->encode("ab", {.bos = BosMode::kOn})), ElementsAre(1, 10, 2));
  EXPECT_THAT(values(t->encode("ab", {.bos = BosMode::kOff})), ElementsAre(10));
}

TEST(Tokenizer, ControlTokensComeFromParsingOnly) {
  const Scored s;
  const auto t = Tokenizer::create(s.vocabulary);
  ASSERT_TRUE(t);
  const EncodeOptions plain{.bos = BosMode::kOff}, parse{.bos = BosMode::kOff, .special = SpecialMode::kParse};
  EXPECT_THAT(values(t->encode("ab</s>ab", parse)), ElementsAre(10, 2, 10));
  for (const TokenId id : t->encode("</s><s><end_of_turn>", plain)) EXPECT_FALSE(t->is_control(id));
  EXPECT_THAT(values(t->encode("<tag>b", plain)), ElementsAre(12, 5, 7));  // user-defined: always
}

// llama.cpp would merge "<s" and ">" into the control token; we do not.
TEST(Tokenizer, MergesNeverMakeAControlToken) {
  const std::vector<std::string_view> tokens = {"<unk>", "<s>", "</s>", "<s", ">", "<", "s"};
  const std::vector<int32_t> types = {2, 3, 3, 1, 1, 1, 1};
  Vocabulary v;
  v.model = "llama";
  v.tokens = tokens;
  v.types = types;
  v.add_space_prefix = false;
  const auto t = Tokenizer::create(v);
  ASSERT_TRUE(t);
  EXPECT_THAT(values(t->encode("<s>", {.bos = BosMode::kOff})), ElementsAre(3, 4));
}

TEST(Tokenizer, RolesKnownBySpelling) {
  const Scored s;
  const auto t = Tokenizer::create(s.vocabulary);
  ASSERT_TRUE(t);
  EXPECT_TRUE(t->is_end_of_generation(TokenId{2}));
  EXPECT_TRUE(t->is_end_of_generation(TokenId{11}));
  EXPECT_TRUE(t->is_control(TokenId{11}));  // although the file says ordinary text
  EXPECT_FALSE(t->is_end_of_generation(TokenId{1}));
}

TEST(Tokenizer, TokenBytesAndTexts) {
  const Scored s;
  const auto t = Tokenizer::create(s.vocabulary);
  ASSERT_TRUE(t);
  EXPECT_EQ(t->token_bytes(TokenId{10}), " ab");
  EXPECT_EQ(t->token_bytes(TokenId{3}), "\n");
  EXPECT_EQ(t->token_bytes(TokenId{2}), "");
  EXPECT_EQ(t->token_text(TokenId{2}), "</s>");
  EXPECT_EQ(t->token_bytes(TokenId{-1}), "");
  EXPECT_EQ(t->token_bytes(TokenId{1000}), "");
  EXPECT_FALSE(t->is_control(TokenId{1000}));
  EXPECT_EQ(t->find_token("▁ab"), TokenId{10});
  EXPECT_EQ(t->find_token("nope"), std::nullopt);
}

TEST(Tokenizer, ByteLevelMergesInRankOrder) {
  const ByteLevel b;
  const auto t = Tokenizer::create(b.vocabulary);
  ASSERT_TRUE(t);
  EXPECT_THAT(values(t->encode("ab ab")), ElementsAre(4, 5));
  EXPECT_THAT(values(t->encode("abc")), ElementsAre(4, 2));  // no merge makes "abc"
  EXPECT_EQ(t->token_bytes(TokenId{5}), " ab");
  EXPECT_EQ(t->token_bytes(TokenId{9}), "\xC3");
  EXPECT_TRUE(t->is_end_of_generation(TokenId{6}));
}

TEST(Tokenizer, WholeWordsBeforeMergesWhereThePreTokenizerSaysSo) {
  ByteLevel b;
  b.vocabulary.pre = "llama-bpe";
  const auto t = Tokenizer::create(b.vocabulary);
  ASSERT_TRUE(t);
  EXPECT_THAT(values(t->encode("abc")), ElementsAre(6, 8));  // BOS by default, then the word
}

TEST(Tokenizer, RefusesWhatItCannotDo) {
  ByteLevel b;
  b.vocabulary.pre = "made-up";
  auto t = Tokenizer::create(b.vocabulary);
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(t.error().message, HasSubstr("llama-bpe"));

  b.vocabulary.model = "bert";
  EXPECT_EQ(Tokenizer::create(b.vocabulary).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(Tokenizer::create({}).error().code, ErrorCode::kBadFile);

  Scored s;
  s.scores.pop_back();
  s.vocabulary.scores = s.scores;
  EXPECT_EQ(Tokenizer::create(s.vocabulary).error().code, ErrorCode::kBadFile);
}

TEST(Tokenizer, IdsOutOfRangeFallBackToTheDefaults) {
  Scored s;
  s.vocabulary.bos = TokenId{99};
  s.vocabulary.eos = TokenId{-3};
  const auto t = Tokenizer::create(s.vocabulary);
  ASSERT_TRUE(t);
  EXPECT_EQ(t->bos(), TokenId{1});
  EXPECT_EQ(t->eos(), TokenId{2});
}

TEST(Tokenizer, PhiStripsSpacesAfterSpecialTokens) {
  Scored s;
  s.vocabulary.name = "Phi-3 mini";
  const auto t = Tokenizer::create(s.vocabulary);
  ASSERT_TRUE(t);
  const EncodeOptions parse{.bos = BosMode::kOff, .special = SpecialMode::kParse};
  EXPECT_THAT(values(t->encode("</s> \n ab", parse)), ElementsAre(2, 10));
  EXPECT_THAT(values(t->encode("<s> ab", parse)), ElementsAre(1, 5, 10));
}

TEST(Tokenizer, LongRunsMergeLikeShortOnes) {
  const ByteLevel b;
  const auto t = Tokenizer::create(b.vocabulary);
  ASSERT_TRUE(t);
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "ab";
  const auto ids = t->encode(text);
  EXPECT_EQ(ids.size(), 3000u);
  for (const TokenId id : ids) EXPECT_EQ(id, TokenId{4});
}

}  // namespace
}  // namespace pagoda::text
