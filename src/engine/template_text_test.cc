#include "engine/template_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace pagoda::engine {
namespace {

const std::string kRendered = "<system>Today is Monday. You are kind.<end><user>Tell me a story<end><assistant>";
const std::vector<std::string> kTexts{" You are kind.\n", "Tell me a story"};

TextOf of(std::string_view piece) {
  const size_t at = kRendered.find(piece);
  return text_of(kRendered, at, at + piece.size(), kTexts);
}

TEST(TemplateTextTest, WhatNoMessageSaysIsTheTemplates) {
  EXPECT_EQ(of("Monday"), TextOf::kTemplate);
  EXPECT_EQ(of("user"), TextOf::kTemplate);
  EXPECT_EQ(of("assistant"), TextOf::kTemplate);
}

TEST(TemplateTextTest, MessagesAndWhatTouchesThem) {
  EXPECT_EQ(of("are"), TextOf::kMessages);
  EXPECT_EQ(of("story"), TextOf::kMessages);
  EXPECT_EQ(of(" Y"), TextOf::kMessages);     // joins both
  EXPECT_EQ(of("<end>"), TextOf::kMessages);  // a text that ended earlier or later
}

TEST(TemplateTextTest, NothingIsSaidOfATextThatIsNotFoundOnce) {
  const std::vector<std::string> changed{"You are unkind."}, twice{"e"},
      out_of_order{"Tell me a story", "You are kind."};
  for (const auto& texts : {changed, twice, out_of_order}) {
    EXPECT_EQ(text_of(kRendered, kRendered.size() - 2, kRendered.size(), texts), TextOf::kUnknown);
  }
  EXPECT_EQ(text_of(kRendered, 0, 1, {}), TextOf::kUnknown);
}

}  // namespace
}  // namespace pagoda::engine
