#include "http/router.h"

#include <gtest/gtest.h>

#include "http/url.h"

namespace pagoda::http {
namespace {

Router sample() {
  Router router;
  const Handler nothing = [](HttpRequest, Responder) {};
  router.add("GET", "/", nothing);
  router.add("GET", "/v1/models", nothing);
  router.add("GET", "/v1/models/{id...}", nothing);
  router.add("POST", "/v1/completions", nothing);
  router.add("GET", "/v1/{kind}/x", nothing);
  return router;
}

TEST(Router, FindsRoutesAndValues) {
  const Router router = sample();
  EXPECT_TRUE(router.find("GET", "/").handler);
  EXPECT_TRUE(router.find("HEAD", "/v1/models").handler);
  EXPECT_TRUE(router.find("GET", "/v1/models/").handler);
  const auto one = router.find("GET", "/v1/models/org/name%20x");
  ASSERT_TRUE(one.handler);
  ASSERT_EQ(one.values.size(), 1u);
  EXPECT_EQ(one.values[0].first, "id");
  EXPECT_EQ(one.values[0].second, "org/name x");
  EXPECT_EQ(router.find("GET", "/v1/a/x").values[0].second, "a");
}

TEST(Router, TellsUnknownPathsFromWrongMethods) {
  const Router router = sample();
  EXPECT_EQ(router.find("GET", "/nothing").allow, "");
  EXPECT_EQ(router.find("GET", "").allow, "");
  EXPECT_EQ(router.find("GET", "*").allow, "");
  EXPECT_EQ(router.find("GET", "/v1//x").allow, "");
  EXPECT_EQ(router.find("GET", "/v1/completions").allow, "POST, OPTIONS");
  EXPECT_EQ(router.find("get", "/v1/models").allow, "GET, HEAD, OPTIONS");
}

TEST(Url, SplitsTargets) {
  EXPECT_EQ(split_target("/a?b=c#d").path, "/a");
  EXPECT_EQ(split_target("/a?b=c#d").query, "b=c");
  EXPECT_EQ(split_target("http://host:80/p/q?r").path, "/p/q");
  EXPECT_EQ(split_target("http://host").path, "/");
  EXPECT_EQ(split_target("/p?u=http://x").path, "/p");
}

TEST(Url, DecodesPercents) {
  EXPECT_EQ(percent_decode("a%2Fb%20c+d"), "a/b c+d");
  EXPECT_FALSE(percent_decode("%2"));
  EXPECT_FALSE(percent_decode("%zz"));
}

}  // namespace
}  // namespace pagoda::http
