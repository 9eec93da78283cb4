// Every pre-tokenizer and both kinds of vocabulary against llama.cpp's ids (tests/golden/tokens; tiny vocabularies trained there).
#include <gtest/gtest.h>

#include <cctype>
#include <cstdint>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace pagoda::text {
namespace {

const std::string kFolder = std::string(PAGODA_SOURCE_DIR) + "/tests/golden/tokens/";

std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream file(kFolder + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string unescaped(const std::string& line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out += line[i];
      continue;
    }
    switch (line[++i]) {
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'x':
        out += static_cast<char>(std::stoi(line.substr(i + 1, 2), nullptr, 16));
        i += 2;
        break;
      default:
        out += line[i];
    }
  }
  return out;
}

// What make_tiny.py writes into its GGUF files.
struct TinyVocabulary {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  std::vector<std::string_view> token_views, merge_views;

  void add(std::string text, TokenType type, float score = 0) {
    tokens.push_back(std::move(text));
    types.push_back(static_cast<int32_t>(type));
    scores.push_back(score);
  }
  void add_specials() {
    add("<|endoftext|>", TokenType::kControl);
    for (const char* text : {"<|im_start|>", "<|im_end|>", "<fim_prefix>"}) add(text, TokenType::kNormal);
    for (const char* text : {"<tool_call>", "   "}) add(text, TokenType::kUserDefined);
    add("<unused0>", TokenType::kControl);
  }
  Vocabulary view(std::string_view model, std::string_view pre) {
    token_views.assign(tokens.begin(), tokens.end());
    merge_views.assign(merges.begin(), merges.end());
    Vocabulary v;
    v.model = model;
    v.pre = pre;
    v.tokens = token_views;
    v.types = types;
    v.scores = scores;
    v.merges = merge_views;
    return v;
  }
};

std::string byte_level_spelling(uint32_t byte) {
  std::string text;
  for (uint32_t c = 0x21; c < 0x144; ++c) {
    text.clear();
    append_utf8(text, c);
    const auto raw = bytes_of_byte_level(text);
    if (raw && static_cast<uint8_t>((*raw)[0]) == byte) break;
  }
  return text;
}

TinyVocabulary tiny_gpt2() {
  TinyVocabulary v;
  std::set<std::string> seen;
  const auto add_new = [&](const std::string& text) {
    if (seen.insert(text).second) v.add(text, TokenType::kNormal);
  };
  for (uint32_t byte = 0; byte < 256; ++byte) add_new(byte_level_spelling(byte));
  for (const std::string& merge : lines_of("tiny_gpt2.txt")) {
    v.merges.push_back(merge);
    const size_t blank = merge.find(' ');
    add_new(merge.substr(0, blank) + merge.substr(blank + 1));
  }
  v.add_specials();
  return v;
}

TinyVocabulary tiny_llama() {
  TinyVocabulary v;
  v.add("<unk>", TokenType::kUnknown);
  v.add("<s>", TokenType::kControl);
  v.add("</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) v.add(fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  for (const std::string& line : lines_of("tiny_llama.txt")) {
    const size_t tab = line.find('\t');
    v.add(unescaped(line.substr(tab + 1)), TokenType::kNormal, std::stof(line));
  }
  v.add_specials();
  return v;
}

std::string fnv_of_ids(const std::vector<TokenId>& ids) {
  uint32_t hash = 2166136261u;
  std::string text;
  for (const TokenId id : ids) text += (text.empty() ? "" : " ") + std::to_string(id.value);
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return fmt::format("{:08x}", hash);
}

void expect_golden(const Tokenizer& tokenizer, const std::string& name) {
  const std::vector<std::string> corpus = lines_of("corpus.txt"), expected = lines_of(name);
  ASSERT_EQ(corpus.size(), expected.size());
  ASSERT_GE(corpus.size(), 500u);
  for (size_t i = 0; i < corpus.size(); ++i) {
    const std::string text = unescaped(corpus[i]);
    const std::string plain = fnv_of_ids(tokenizer.encode(text));
    const std::string parsed = fnv_of_ids(tokenizer.encode(text, {.special = SpecialMode::kParse}));
    EXPECT_EQ(plain == parsed ? plain : plain + "|" + parsed, expected[i]) << "line " << i + 1 << ": " << corpus[i];
  }
}

// Lines of the corpus, several at a time, random bytes among them; and what bounds are the nearest to: one long token again and again.
std::vector<std::string> texts_to_bound() {
  std::mt19937 random(1);
  const std::vector<std::string> corpus = lines_of("corpus.txt");
  std::vector<std::string> texts{std::string(3000, ' '), std::string(3000, 'a'), std::string(900, '\xE2')};
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int n = 1 + static_cast<int>(random() % 4); n > 0; --n) text += unescaped(corpus[random() % corpus.size()]);
    for (int n = static_cast<int>(random() % 3); n > 0; --n)
      text.insert(random() % (text.size() + 1), 1, static_cast<char>(random()));
    texts.push_back(text);
  }
  for (const char* part : {"<|im_end|>", "<tool_call>", "   ", " the", "\xEF\xBF\xBD"}) {
    texts.emplace_back();
    for (int i = 0; i < 300; ++i) texts.back() += part;
  }
  return texts;
}

void expect_bounds(const Tokenizer& tokenizer) {
  int64_t bound_sum = 0, sum = 0;
  for (const std::string& text : texts_to_bound()) {
    const int64_t least = tokenizer.least_tokens(text);
    for (const SpecialMode special : {SpecialMode::kPlain, SpecialMode::kParse}) {
      const auto n = static_cast<int64_t>(tokenizer.encode(text, {.bos = BosMode::kOff, .special = special}).size());
      ASSERT_LE(least, n) << testing::PrintToString(text);
      sum += n;
    }
    bound_sum += 2 * least;
  }
  EXPECT_GT(bound_sum, sum / 40) << "a bound of nothing would be true as well";
}

class ByteLevelGolden : public testing::TestWithParam<const char*> {
 protected:
  Result<Tokenizer> make() {
    Vocabulary vocabulary = tiny_.view("gpt2", GetParam());
    const TokenId end{static_cast<int32_t>(tiny_.tokens.size() - 7)};
    vocabulary.bos = vocabulary.eos = end;
    return Tokenizer::create(vocabulary);
  }

 private:
  TinyVocabulary tiny_ = tiny_gpt2();
};

TEST_P(ByteLevelGolden, IdsEqualLlamaCpp) {
  auto tokenizer = make();
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  expect_golden(*tokenizer, std::string("tiny-") + GetParam() + ".fnv");
}

TEST_P(ByteLevelGolden, LeastTokensAreNeverMore) { expect_bounds(*make()); }

// Long texts are read in pieces that end between a letter and a blank or line feed: nothing else may come of it.
TEST_P(ByteLevelGolden, ATextMayBeCutBehindALetter) {
  const auto tokenizer = make();
  const auto encoded = [&](std::string_view text) { return tokenizer->encode(text, {.bos = BosMode::kOff}); };
  int n_cuts = 0;
  std::string whole;
  for (const std::string& line : lines_of("corpus.txt")) {
    const std::string text = unescaped(line);
    const std::vector<TokenId> expected = encoded(text);
    int n_here = 0;
    for (size_t i = 1; i < text.size() && n_here < 8; ++i) {
      if ((text[i] != ' ' && text[i] != '\n') || !std::isalpha(static_cast<unsigned char>(text[i - 1]))) continue;
      std::vector<TokenId> joined = encoded(std::string_view(text).substr(0, i));
      const std::vector<TokenId> rest = encoded(std::string_view(text).substr(i));
      joined.insert(joined.end(), rest.begin(), rest.end());
      ASSERT_EQ(joined, expected) << line << " at " << i;
      ++n_cuts;
      ++n_here;
    }
    if (whole.size() < 200'000) whole += text + "z ";
  }
  EXPECT_GT(n_cuts, 300);
  std::string decoded;
  for (const TokenId id : encoded(whole)) decoded += tokenizer->token_bytes(id);
  EXPECT_EQ(decoded, decode_runes(whole).bytes);
}

// None of them may cost a search through all of it for each of its characters: then these would not end.
TEST_P(ByteLevelGolden, HostileTextsEnd) {
  const auto tokenizer = make();
  constexpr size_t kBytes = 200'000;
  for (const char* part : {" ", "a", "1", "\n", "\r\n ", "'", "!", " a", "<", "<|", "\xE2\x96\x81", "\xFF"}) {
    std::string text;
    while (text.size() < kBytes) text += part;
    EXPECT_FALSE(tokenizer->encode(text + "5", {.special = SpecialMode::kParse}).empty());
  }
}

INSTANTIATE_TEST_SUITE_P(EveryPreTokenizer, ByteLevelGolden,
                         testing::Values("default", "gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-llm",
                                         "deepseek-coder", "falcon", "starcoder", "refact", "command-r", "mpt"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ScoredGolden, IdsEqualLlamaCpp) {
  TinyVocabulary tiny = tiny_llama();
  auto tokenizer = Tokenizer::create(tiny.view("llama", ""));
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  expect_golden(*tokenizer, "tiny-llama.fnv");
}

TEST(ScoredGolden, LeastTokensAreNeverMore) {
  TinyVocabulary tiny = tiny_llama();
  expect_bounds(*Tokenizer::create(tiny.view("llama", "")));
}

}  // namespace
}  // namespace pagoda::text
