#include "api/json_fields.h"

#include <gtest/gtest.h>

#include <string>

#include "api/openai.h"
#include "base/heavy_json.h"
#include "base/peak_memory.h"

namespace pagoda::api {
namespace {

constexpr size_t kBytes = 2 << 20;

std::string repeated(const std::string& head, const std::string& part, const std::string& tail) {
  return repeated_json(kBytes, head, part, tail);
}

// Bodies that are mostly one thing; what is kept of them, as a body's copies, comes on top.
TEST(ParseWorkTest, ParsingTakesNoMore) {
  if (kHasOwnHeap) GTEST_SKIP() << "a sanitizer's heap says nothing";
  constexpr size_t kKeptCopies = 3, kNoise = 512 << 10;
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],"other":)";
  std::vector<std::string> bodies{
      R"({"messages":[{"role":"user","content":")" + std::string(kBytes, 'a') + "\"}]}",
      R"({"messages":[{"role":"developer","content":")" + std::string(kBytes, 'a') + "\"}]}",
      repeated(R"({"messages":[)", R"({"role":"user","content":""})", "]}"),
      repeated(R"({"messages":[)", R"({"role":"user"})", "]}"),
      repeated(R"({"messages":[{"role":"user","content":[)", R"({"type":"text","text":"a"})", "]}]}"),
      repeated(R"({"messages":[{"role":"user","content":"x","a":[)", R"({"a":1})", "]}]}"),
      repeated(chat + "[", "[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]", "]}"),
  };
  for (const char* element : kHeavyElements) bodies.push_back(repeated(chat + "[", element, "]}"));
  for (const std::string& body : bodies) {
    const size_t peak = peak_bytes([&] { return parse_chat(body).has_value(); });
    const size_t most = parse_work_bytes(body) + kKeptCopies * body.size();
    EXPECT_GT(peak, 0u) << body.substr(0, 80);
    EXPECT_LE(peak, most + kNoise) << body.substr(0, 80) << ": " << peak / kBytes;
    EXPECT_LE(parse_work_bytes(body), body.size() * kMostParseFactor);
  }
}

}  // namespace
}  // namespace pagoda::api
