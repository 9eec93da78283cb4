#include "api/json_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "api/json_scan.h"

namespace pagoda::api {
namespace {

TEST(JsonText, EscapesAndRepairs) {
  EXPECT_EQ(json_string("a\"b\\c\n\t\x01\x7f"), "\"a\\\"b\\\\c\\n\\t\\u0001\\u007f\"");
  EXPECT_EQ(json_string("h\xc3\xa9 \xe4\xbd\xa0 \xf0\x9f\x98\x80"), "\"h\xc3\xa9 \xe4\xbd\xa0 \xf0\x9f\x98\x80\"");
  EXPECT_EQ(json_string("\xe4\xbd"), "\"\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(json_string("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(JsonText, EveryByteStringBecomesJson) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string bytes{static_cast<char>(a), static_cast<char>(b)};
      const std::string text = json_string(bytes);
      const auto parsed = nlohmann::json::parse(text, nullptr, false);
      ASSERT_TRUE(parsed.is_string()) << text;
      if (is_utf8(bytes)) {
        ASSERT_EQ(parsed.get<std::string>(), bytes);
      }
    }
  }
}

TEST(JsonText, Floats) {
  const auto text = [](float value) {
    std::string out;
    append_json_float(out, value);
    return out;
  };
  EXPECT_EQ(text(-0.25f), "-0.25");
  EXPECT_EQ(text(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(text(std::numeric_limits<float>::quiet_NaN()), "-9999.0");
  EXPECT_EQ(text(-0.1f), "-0.1");
  EXPECT_EQ(text(-2.0f), "-2.0");
  EXPECT_EQ(text(0.0f), "0.0");
  for (const float value : {-1e-30f, 1e20f, -123456.0f, 1e-5f})
    EXPECT_TRUE(nlohmann::json::accept(text(value))) << text(value);
}

TEST(JsonText, CountsCharacters) {
  EXPECT_EQ(utf8_characters("h\xc3\xa9\xe4\xbd\xa0"), 3u);
  EXPECT_EQ(utf8_characters("\xe4") + utf8_characters("\xbd") + utf8_characters("\xa0"), 1u);
}

TEST(JsonScan, Depth) {
  EXPECT_EQ(json_depth("[[1],{\"a\":[\"[[[[\"]}]", 100), 3);
  EXPECT_EQ(json_depth(std::string(1000, '['), 65), 65);
  EXPECT_EQ(json_depth("\"a\\\"[[[\"", 100), 0);
}

TEST(JsonScan, RawMembers) {
  const std::string text = R"( {"b" : {"z":1,"a":[1.0,"}"]} , "x\u0061":12 ,"t":true,"b2":"q\"}", "b":[3], "e":{} } )";
  ASSERT_TRUE(nlohmann::json::accept(text));
  EXPECT_EQ(raw_member(text, "b"), "[3]");
  EXPECT_EQ(raw_member(text, "xa"), "12");
  EXPECT_EQ(raw_member(text, "t"), "true");
  EXPECT_EQ(raw_member(text, "b2"), R"("q\"}")");
  EXPECT_EQ(raw_member(text, "e"), "{}");
  EXPECT_EQ(raw_member(text, "z"), std::nullopt);
  EXPECT_EQ(raw_member("[1]", "z"), std::nullopt);
}

}  // namespace
}  // namespace pagoda::api
