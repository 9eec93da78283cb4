#include "serve/access_log.h"

#include <gmock/gmock.h>

namespace pagoda::serve {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::EndsWith;
using testing::Pair;

TEST(AccessLogTest, CountsByOutcome) {
  AccessLog log;
  EXPECT_THAT(log.outcomes(), Contains(Pair("overloaded", 0u)));
  log.write({.id = "a", .route = "/x", .status = 200, .outcome = "done"});
  log.write({.id = "b", .route = "/x", .status = 200, .outcome = "done"});
  log.write({.id = "c", .route = "/x", .status = 500, .outcome = "io"});
  EXPECT_THAT(log.outcomes(), AllOf(Contains(Pair("done", 2u)), Contains(Pair("io", 1u)), Contains(Pair("gone", 0u))));
}

TEST(AccessLogTest, ContentIsCutInWholeCharacters) {
  LoggedContent content;
  content.add_answer(std::string(LoggedContent::kMostBytes - 1, 'x'));
  content.add_answer("\xc3\xa4");  // one byte of it would fit
  content.add_answer("y");
  EXPECT_EQ(content.answer.size(), LoggedContent::kMostBytes - 1 + 6);
  EXPECT_THAT(content.answer, EndsWith("x [cut]"));
}

TEST(AccessLogTest, PromptsOfEachKindAreSaid) {
  LoggedContent content;
  content.add_prompt(engine::TextPrompt{"text "});
  content.add_prompt(engine::TokenPrompt{{TokenId(1), TokenId(22)}});
  content.add_prompt(engine::ChatPrompt{"[{}]", {}, {}});
  EXPECT_EQ(content.prompt, "text 1 22 [{}]");
  content.add_prompt(engine::TokenPrompt{std::vector<TokenId>(100'000, TokenId(7))});
  EXPECT_LE(content.prompt.size(), LoggedContent::kMostBytes + 6);
}

TEST(AccessLogTest, TimingsOfSeveralPromptsAreTheLongest) {
  const engine::Timing timing = longest(engine::Timing{.queue_us = 1, .prefill_us = 20, .decode_us = 3},
                                        {.queue_us = 10, .prefill_us = 2, .decode_us = 3});
  EXPECT_EQ(longest(std::nullopt, {.queue_us = 7, .prefill_us = 0, .decode_us = 0}).queue_us, 7);
  EXPECT_EQ(timing.queue_us, 10);
  EXPECT_EQ(timing.prefill_us, 20);
  EXPECT_EQ(timing.decode_us, 3);
}

}  // namespace
}  // namespace pagoda::serve
