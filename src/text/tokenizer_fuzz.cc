// Arbitrary bytes through both kinds of tokenizer: ids stay in range, control tokens never come from plain text, and a byte-level
// vocabulary with all its byte tokens gives valid text back unchanged.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace pagoda;
using namespace pagoda::text;

struct Vocabularies {
  std::vector<Tokenizer> byte_level;
  std::vector<Tokenizer> scored;
};

void add_byte_level(std::string_view pre, std::vector<Tokenizer>& tokenizers) {
  std::vector<std::string> spellings;
  for (uint32_t c = 0x21; c < 0x144; ++c) {
    std::string text;
    append_utf8(text, c);
    if (bytes_of_byte_level(text)) spellings.push_back(text);
  }
  const std::vector<std::string_view> merges = {"a a", "aa aa", "Ġ a", "t h",   "th e", "Ġ the",
                                                "1 2", "Ċ Ċ",   "Ġ Ġ", "ĠĠ ĠĠ", "Ã ©",  "' s"};
  std::vector<std::string_view> tokens(spellings.begin(), spellings.end());
  const std::vector<std::string_view> joined = {"aa", "aaaa", "Ġa", "th",   "the", "Ġthe",
                                                "12", "ĊĊ",   "ĠĠ", "ĠĠĠĠ", "Ã©",  "'s"};
  tokens.insert(tokens.end(), joined.begin(), joined.end());
  std::vector<int32_t> types(tokens.size(), 1);
  for (const std::string_view special : {"<|im_end|>", "<|endoftext|>"}) {
    tokens.push_back(special);
    types.push_back(3);
  }
  tokens.push_back("<tool>");
  types.push_back(4);
  Vocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  v.tokens = tokens;
  v.types = types;
  v.merges = merges;
  auto tokenizer = Tokenizer::create(v);
  CHECK(tokenizer.has_value());
  tokenizers.push_back(std::move(*tokenizer));
}

void add_scored(std::vector<Tokenizer>& tokenizers) {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(fmt::format("<0x{:02X}>", byte));
  std::vector<std::string_view> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  for (const std::string& byte : bytes) {
    tokens.push_back(byte);
    types.push_back(6);
  }
  for (const std::string_view text :
       {"▁", "a", "▁a", "aa", "aaa", "th", "e", "the", "▁the", "▁▁", "é", "</", "s>", "<s", ">", "</s"}) {
    tokens.push_back(text);
    types.push_back(1);
  }
  std::vector<float> scores(tokens.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i % 5);
  Vocabulary v;
  v.model = "llama";
  v.tokens = tokens;
  v.types = types;
  v.scores = scores;
  auto tokenizer = Tokenizer::create(v);
  CHECK(tokenizer.has_value());
  tokenizers.push_back(std::move(*tokenizer));
}

const Vocabularies& vocabularies() {
  static const Vocabularies all = [] {
    Vocabularies v;
    for (const char* pre :
         {"default", "gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-llm", "deepseek-coder", "falcon"}) {
      add_byte_level(pre, v.byte_level);
    }
    add_scored(v.scored);
    return v;
  }();
  return all;
}

// U+2581 is a blank's spelling inside these vocabularies: it comes back as a blank, or as itself behind a broken lead byte.
std::string with_blanks(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const bool blank = text.substr(i, 3) == "▁";
    out += blank ? ' ' : text[i];
    i += blank ? 3 : 1;
  }
  return out;
}

std::string checked_text(const Tokenizer& tokenizer, std::string_view text, SpecialMode special) {
  std::string out;
  const std::vector<TokenId> ids = tokenizer.encode(text, {.bos = BosMode::kOff, .special = special});
  CHECK(static_cast<int64_t>(ids.size()) >= tokenizer.least_tokens(text));
  for (const TokenId id : ids) {
    CHECK(id.value >= 0 && static_cast<size_t>(id.value) < tokenizer.size());
    CHECK(special == SpecialMode::kParse || !tokenizer.is_control(id));
    out += tokenizer.token_bytes(id);
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string cleaned = decode_runes(text).bytes;
  for (const Tokenizer& tokenizer : vocabularies().byte_level) {
    CHECK(checked_text(tokenizer, text, SpecialMode::kPlain) == cleaned);
    checked_text(tokenizer, text, SpecialMode::kParse);
  }
  for (const Tokenizer& tokenizer : vocabularies().scored) {
    const std::string out = checked_text(tokenizer, text, SpecialMode::kPlain);
    CHECK(text.empty() || with_blanks(out) == " " + with_blanks(text));
    checked_text(tokenizer, text, SpecialMode::kParse);
  }
  return 0;
}
