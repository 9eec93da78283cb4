#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace pagoda::text {
namespace {

struct Decoded {
  std::string text;
  std::optional<size_t> stop;
  bool operator==(const Decoded&) const = default;
};

// The definition: whole bytes at once, one code path per rule, no state.
std::string decode_whole(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size();) {
    const auto at = [&](size_t k) -> unsigned { return k < bytes.size() ? static_cast<uint8_t>(bytes[k]) : 256u; };
    const auto in = [&](size_t k, unsigned low, unsigned high) { return at(k) >= low && at(k) <= high; };
    size_t length = 0, good = 1;
    unsigned low = 0x80, high = 0xBF;
    const unsigned lead = at(i);
    if (lead < 0x80) length = 1;
    if (lead >= 0xC2 && lead <= 0xDF) length = 2;
    if (lead >= 0xE0 && lead <= 0xEF) length = 3;
    if (lead >= 0xF0 && lead <= 0xF4) length = 4;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    while (good < length && in(i + good, good == 1 ? low : 0x80, good == 1 ? high : 0xBF)) ++good;
    text += length > 0 && good == length ? std::string(bytes.substr(i, length)) : "\xEF\xBF\xBD";
    i += good;
  }
  return text;
}

Decoded decode_naively(std::string_view bytes, const std::vector<std::string>& stops) {
  const std::string text = decode_whole(bytes);
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool ends_here = !stops[i].empty() && std::string_view(text).substr(0, end).ends_with(stops[i]);
      if (ends_here && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

bool is_valid_utf8(const std::string& text) {
  const std::string decoded = decode_whole(text);
  return decoded == text;
}

TEST(StreamDecoder, HoldsAnIncompleteCharacter) {
  StreamDecoder decoder;
  EXPECT_EQ(decoder.push("a\xF0\x9F").text, "a");
  EXPECT_EQ(decoder.push("\x98").text, "");
  EXPECT_EQ(decoder.push("\x80!").text, "\xF0\x9F\x98\x80!");
  EXPECT_EQ(decoder.flush().text, "");
}

TEST(StreamDecoder, ReplacesInvalidBytesAsSoonAsTheyAreKnown) {
  StreamDecoder decoder;
  EXPECT_EQ(decoder.push("\xFFx").text, "\xEF\xBF\xBDx");
  EXPECT_EQ(decoder.push("\xE2\x82").text, "");
  EXPECT_EQ(decoder.push("A").text,
            "\xEF\xBF\xBD"
            "A");  // one for the two-byte subpart
  EXPECT_EQ(decoder.push("\xE2").text, "");
  EXPECT_EQ(decoder.flush().text, "\xEF\xBF\xBD");
}

TEST(StreamDecoder, CutsAtAStopAcrossPushes) {
  StreamDecoder decoder({"END", "\n\n"});
  EXPECT_EQ(decoder.push("some E").text, "some ");
  EXPECT_EQ(decoder.push("N").text, "");
  EXPECT_EQ(decoder.push("?").text, "EN?");
  EXPECT_EQ(decoder.push(" EN").text, " ");
  const auto last = decoder.push("D more");
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.matched_stop, 0u);
  EXPECT_TRUE(decoder.stopped());
  EXPECT_EQ(decoder.push("x").text, "");
  EXPECT_EQ(decoder.flush().text, "");
}

TEST(StreamDecoder, ReleasesHeldTextAtTheEnd) {
  StreamDecoder decoder({"stop"});
  EXPECT_EQ(decoder.push("do sto").text, "do ");
  EXPECT_EQ(decoder.flush().text, "sto");
}

TEST(StreamDecoder, PrefersTheLongerOfTwoStopsThatEndTogether) {
  StreamDecoder decoder({"b", "ab"});
  const auto delta = decoder.push("xab");
  EXPECT_EQ(delta.text, "x");
  EXPECT_EQ(delta.matched_stop, 1u);
}

TEST(StreamDecoder, AnySplitGivesTheNaiveResult) {
  std::mt19937 rng(7);
  const std::vector<std::string> atoms = {"a",  "b",    "ab",       "\n",           "é",    "€",
                                          "😀", "\xFF", "\xE2\x82", "\xF0\x9F\x98", "\x80", "\xED\xA0"};
  const std::vector<std::vector<std::string>> stop_sets = {
      {}, {"ab"}, {"aab", "ba"}, {"€"}, {"\n\n", "b\n"}, {"aaa", "", "aa😀"}, {"\xEF\xBF\xBD"}, {"é€", "€"}, {"abab"}};
  for (int round = 0; round < 4000; ++round) {
    std::string bytes;
    for (size_t n = rng() % 12; n > 0; --n) bytes += atoms[rng() % atoms.size()];
    const auto& stops = stop_sets[rng() % stop_sets.size()];
    StreamDecoder decoder(stops);
    Decoded got;
    const auto take = [&](const StreamDecoder::Delta& delta) {
      EXPECT_TRUE(is_valid_utf8(delta.text));
      got.text += delta.text;
      if (delta.matched_stop) got.stop = delta.matched_stop;
    };
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = std::min<size_t>(1 + rng() % 4, bytes.size() - i);
      take(decoder.push(std::string_view(bytes).substr(i, n)));
      i += n;
    }
    take(decoder.flush());
    const Decoded expected = decode_naively(bytes, stops);
    ASSERT_EQ(got.text, expected.text) << "round " << round;
    ASSERT_EQ(got.stop, expected.stop) << "round " << round;
  }
}

}  // namespace
}  // namespace pagoda::text
