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
  EXPECT_FALSE(log.find("t", "a"));
  log.add("t", {"a", "b"}, reports_of(2, 1));
  log.add("t", {"b", "c"}, reports_of(1, 7));
  EXPECT_EQ(log.find("t", "a")->size(), 2u);
  EXPECT_EQ(log.find("t", "b")->at(0)->reused_tokens, 7);
  EXPECT_EQ(log.find("t", "c")->at(0)->reused_tokens, 7);
  EXPECT_FALSE(log.find("t", ""));
  EXPECT_FALSE(log.find("u", "a"));  // another tenant
  EXPECT_FALSE(log.find("", "a"));
}

TEST(RequestLogTest, ForgetsTheOldest) {
  RequestLog log;
  for (size_t i = 0; i < RequestLog::kMostCalls + 1; ++i) log.add("t", {std::to_string(i)}, reports_of(1));
  EXPECT_FALSE(log.find("t", "0"));
  EXPECT_TRUE(log.find("t", "1"));
  for (int i = 0; i < 16; ++i) log.add("t", {"many"}, reports_of(256));
  EXPECT_FALSE(log.find("t", "1024"));
  EXPECT_TRUE(log.find("t", "many"));
}

}  // namespace
}  // namespace pagoda::serve
