// That encoding allocates no more than Tokenizer::work_bytes says: the most that is resident, of a child process whose heap is bounded as a
// server's under a memory limit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/heavy_json.h"
#include "base/peak_memory.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace pagoda::text {
namespace {

// Bytes and a few joins of each kind, and one control token.
struct Tiny {
  std::vector<std::string> texts;
  std::vector<std::string_view> tokens, merges{"a a", "aa aa", "t h", "th e"};
  std::vector<int32_t> types;
  std::vector<float> scores;

  Tokenizer make(std::string_view model) {
    for (uint32_t c = 0x21; model == "gpt2" && c < 0x144; ++c) {
      std::string text;
      append_utf8(text, c);
      if (bytes_of_byte_level(text)) texts.push_back(text);
    }
    for (int byte = 0; model == "llama" && byte < 256; ++byte) texts.push_back(fmt::format("<0x{:02X}>", byte));
    types.assign(texts.size(), model == "llama" ? 6 : 1);
    for (const char* text : {"aa", "aaaa", "th", "the", "\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81"})
      texts.emplace_back(text);
    types.resize(texts.size(), 1);
    texts.emplace_back("<|x|>");
    types.push_back(3);
    tokens.assign(texts.begin(), texts.end());
    scores.assign(texts.size(), -1.0f);
    Vocabulary v;
    v.model = model;
    v.pre = "gpt-2";
    v.tokens = tokens;
    v.types = types;
    v.merges = merges;
    v.scores = scores;
    return std::move(*Tokenizer::create(v));
  }
};

TEST(WorkBytesTest, EncodingTakesNoMore) {
  if (kHasOwnHeap) GTEST_SKIP() << "a sanitizer's heap says nothing";
  constexpr size_t kBytes = 1 << 20, kNoise = 512 << 10;
  for (const char* model : {"gpt2", "llama"}) {
    Tiny tiny;
    const Tokenizer tokenizer = tiny.make(model);
    for (const char* part : {"a", "b", " ", "1 ", "the the the,\n", "<|x|>", "\xC3\xA9", "\xFF", "\xE6\x97\xA5"}) {
      std::string text;
      while (text.size() < kBytes) text += part;
      const size_t peak = peak_bytes([&] { return !tokenizer.encode(text, {.special = SpecialMode::kParse}).empty(); });
      const size_t most = tokenizer.work_bytes(text);
      EXPECT_GT(peak, 0u);
      EXPECT_LE(peak, most + kNoise) << model << " '" << part << "': " << peak / kBytes << " bytes per byte";
      EXPECT_LE(most, kBytes * Tokenizer::kMostWorkFactor);
    }
  }
}

TEST(WorkBytesTest, RenderingTakesNoMore) {
  if (kHasOwnHeap) GTEST_SKIP() << "a sanitizer's heap says nothing";
  constexpr size_t kBytes = 1 << 20, kNoise = 512 << 10;
  const std::string chatml =
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') | trim + '<|im_end|>' }}{% "
      "endfor %}";
  const std::string loops =
      "{% set ns = namespace(all='') %}{% for m in messages %}{% for k, v in m | items %}{% if v is string %}{{ k ~ v "
      "}}{% else %}"
      "{{ v | tojson }}{% endif %}{% endfor %}{% endfor %}";
  const auto repeated = [](const std::string& head, const std::string& part, const std::string& tail) {
    return repeated_json(kBytes, head, part, tail);
  };
  const std::string user = R"([{"role":"user","content":")", other = R"([{"role":"user","content":"x","other":)";
  std::vector<std::string> conversations{
      user + std::string(kBytes, 'a') + "\"}]",
      user +
          [] {
            std::string e;
            while (e.size() < kBytes) e += "\\n";
            return e;
          }() +
          "\"}]",
      repeated("[", R"({"role":"user","content":""})", "]"),
      repeated(R"([{"role":"user","content":[)", R"({"type":"text","text":""})", "]}]"),
  };
  for (const char* element : kHeavyElements) conversations.push_back(repeated(other + "[", element, "]}]"));
  for (const std::string& source : {chatml, loops}) {
    const auto chat_template = ChatTemplate::compile(source, "", "");
    ASSERT_TRUE(chat_template) << chat_template.error().to_string();
    for (const std::string& messages : conversations) {
      const size_t peak = peak_bytes([&] {
        chat_template->render(messages, "");
        return true;
      });
      const size_t most = ChatTemplate::work_bytes({messages});
      EXPECT_GT(peak, 0u);
      EXPECT_LE(peak, most + kNoise) << messages.substr(0, 80);
    }
  }
}

}  // namespace
}  // namespace pagoda::text
