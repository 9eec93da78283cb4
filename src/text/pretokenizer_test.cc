#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::text {
namespace {

using testing::ElementsAre;

std::vector<std::string> words(std::string_view pre, std::string_view text) {
  const auto pre_tokenizer = PreTokenizer::find(pre);
  EXPECT_TRUE(pre_tokenizer);
  const Runes runes = decode_runes(text);
  std::vector<std::string> out;
  uint32_t begin = 0;
  for (const uint32_t end : pre_tokenizer->split(runes)) {
    out.push_back(runes.bytes.substr(runes.offsets[begin], runes.offsets[end] - runes.offsets[begin]));
    begin = end;
  }
  return out;
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(words("gpt-2", "It's 2024!  ok\n"), ElementsAre("It", "'s", " 2024", "!", " ", " ok", "\n"));
  EXPECT_THAT(words("gpt-2", "IT'S"), ElementsAre("IT", "'", "S"));
  EXPECT_THAT(words("gpt-2", ""), ElementsAre());
}

TEST(PreTokenizer, Llama3) {
  EXPECT_THAT(words("llama-bpe", "IT'S 12345 (x)\n\n y"),
              ElementsAre("IT", "'S", " ", "123", "45", " (", "x", ")\n\n", " y"));
  EXPECT_THAT(words("llama-bpe", "a \n b"), ElementsAre("a", " \n", " b"));
}

TEST(PreTokenizer, Qwen2CutsEveryDigit) { EXPECT_THAT(words("qwen2", "x12"), ElementsAre("x", "1", "2")); }

TEST(PreTokenizer, SmollmCutsDigitsFirst) { EXPECT_THAT(words("smollm", "a 12"), ElementsAre("a", " ", "1", "2")); }

TEST(PreTokenizer, DefaultAndFalconCutPunctuationAndDigitTriples) {
  EXPECT_THAT(words("default", "a,b 12345"), ElementsAre("a", ",", "b", " ", "123", "45"));
  EXPECT_THAT(words("falcon", "x`y12345"), ElementsAre("x", "`", "y", "123", "45"));
}

TEST(PreTokenizer, DeepSeek) {
  EXPECT_THAT(words("deepseek-llm", "hi there!\n中文12  "), ElementsAre("hi", " there", "!", "\n", "中文", "12", "  "));
  EXPECT_THAT(words("deepseek-coder", "f(x)=12"), ElementsAre("f", "(", "x", ")", "=", "1", "2"));
}

TEST(Unicode, ClassesOfVersion15) {
  EXPECT_EQ(char_class('a'), CharClass::kLetter);
  EXPECT_EQ(char_class(0x0661), CharClass::kNumber);  // Arabic-Indic digit
  EXPECT_EQ(char_class(0x0301), CharClass::kMark);
  EXPECT_EQ(char_class(0x3000), CharClass::kSpace);
  EXPECT_EQ(char_class('$'), CharClass::kSymbol);
  EXPECT_EQ(char_class(0x2EBF0), CharClass::kLetter);  // new in 15.1
  EXPECT_EQ(char_class(0x10D40), CharClass::kOther);   // a digit only since 16
  EXPECT_EQ(char_class(0x10FFFF), CharClass::kOther);
  EXPECT_EQ(char_class(0x110000), CharClass::kOther);
}

TEST(Unicode, InvalidBytesBecomeReplacementCharacters) {
  EXPECT_EQ(decode_runes("a\xFF\xE2\x82z").bytes, "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
  EXPECT_EQ(decode_runes("\xF4\x90\x80\x80").bytes.size(), 12u);  // above U+10FFFF
  EXPECT_EQ(decode_runes("\xC1\x81").bytes, "A");                 // overlong
  EXPECT_EQ(decode_runes("\xED\xA0\x80").bytes, "\xED\xA0\x80");  // surrogate
}

TEST(Unicode, ByteLevelAlphabet) {
  EXPECT_EQ(bytes_of_byte_level("ĠaĊ"), " a\n");
  EXPECT_EQ(bytes_of_byte_level("Ã©"), "\xC3\xA9");
  EXPECT_EQ(bytes_of_byte_level("a b"), std::nullopt);
}

}  // namespace
}  // namespace pagoda::text
