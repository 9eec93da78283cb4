#include "serve/request_log.h"

#include <gtest/gtest.h>

namespace pagoda::serve {
namespace {

CacheReports reports_of(int n, int reused_tokens = 0) {
  CacheReports reports;
  for (int i = 0; i < n; ++i) {
    auto report = std::make_shared<engine::CacheReport>();
    report->reused_tokens = reused_tokens;
    reports.push_back(report);
  }
  return reports;
}

TEST(RequestLogTest, FindsByEachIdAndTheNewestOfEqualOnes) {
  RequestLog log;
  EXPECT_FALSE(log.find("a"));
  log.add({"a", "b"}, reports_of(2, 1));
  log.add({"b", "c"}, reports_of(1, 7));
  EXPECT_EQ(log.find("a")->size(), 2u);
  EXPECT_EQ(log.find("b")->at(0)->reused_tokens, 7);
  EXPECT_EQ(log.find("c")->at(0)->reused_tokens, 7);
  EXPECT_FALSE(log.find(""));
}

TEST(RequestLogTest, ForgetsTheOldest) {
  RequestLog log;
  for (size_t i = 0; i < RequestLog::kMostCalls + 1; ++i) log.add({std::to_string(i)}, reports_of(1));
  EXPECT_FALSE(log.find("0"));
  EXPECT_TRUE(log.find("1"));
  for (int i = 0; i < 16; ++i) log.add({"many"}, reports_of(256));
  EXPECT_FALSE(log.find("1024"));
  EXPECT_TRUE(log.find("many"));
}

}  // namespace
}  // namespace pagoda::serve
