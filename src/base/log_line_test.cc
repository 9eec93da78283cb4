#include "base/log_line.h"

#include <gmock/gmock.h>
#include "base/log.h"
#include "base/test_log.h"

namespace pagoda {
namespace {

void say() {
  LogLine("request")
      .add("id", "a-1")
      .add("n", 3)
      .add("ms", 1.25)
      .add("stream", true)
      .add("said", "a \"b\"\nc=d")
      .write();
}

TEST(LogLineTest, TextQuotesOnlyWhatNeedsIt) {
  const TestLog log;
  say();
  EXPECT_EQ(log.text(), "info request id=a-1 n=3 ms=1.2 stream=true said=\"a \\\"b\\\"\\nc=d\"\n");
}

TEST(LogLineTest, JsonIsOneObjectALineOfEveryLine) {
  const TestLog log;
  use_json_log();
  say();
  LOG_WARN("with {} \"quotes\"", 2);
  EXPECT_THAT(log.text(),
              testing::MatchesRegex(
                  R"(\{"time":"20..-..-..T..:..:..\....Z","level":"info","event":"request","id":"a-1","n":3,"ms":1.2,)"
                  R"("stream":true,"said":"a \\"b\\"\\nc=d"\})"
                  "\n"
                  R"(\{"time":"20..-..-..T..:..:..\....Z","level":"warning","message":"with 2 \\"quotes\\""\})"
                  "\n"));
}

}  // namespace
}  // namespace pagoda
