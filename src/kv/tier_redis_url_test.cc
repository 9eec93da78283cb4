// Redis URLs and the circuit breaker.
#include "kv/tier_redis_url.h"

#include <gtest/gtest.h>

#include "kv/tier_breaker.h"

namespace pagoda::kv {
namespace {

TEST(RedisUrl, Parts) {
  const auto url = parse_redis_url("redis://alice:p%40ss%2Fw@cache.example:7000/3");
  ASSERT_TRUE(url.has_value());
  EXPECT_EQ(url->host, "cache.example");
  EXPECT_EQ(url->port, 7000);
  EXPECT_EQ(url->user, "alice");
  EXPECT_EQ(url->password, "p@ss/w");
  EXPECT_EQ(url->db, 3u);
  EXPECT_EQ(url->to_string(), "cache.example:7000/3");
  EXPECT_EQ(parse_redis_url("redis://localhost")->port, 6379);
  EXPECT_EQ(parse_redis_url("redis://:secret@localhost/")->password, "secret");
  EXPECT_EQ(parse_redis_url("redis://[::1]:7001")->host, "::1");
  EXPECT_EQ(parse_redis_url("redis://[::1]:7001")->to_string(), "[::1]:7001/0");
}

TEST(RedisUrl, ErrorsNameTheCauseAndNotThePassword) {
  const auto message = [](std::string_view url) { return parse_redis_url(url).error().message; };
  EXPECT_EQ(message("localhost:6379"), "Redis URL: does not begin with redis://");
  EXPECT_EQ(message("rediss://localhost"), "Redis URL: TLS (rediss://) is not supported");
  EXPECT_EQ(message("redis://"), "Redis URL: no host");
  EXPECT_EQ(message("redis://:pw@:1"), "Redis URL: no host");
  EXPECT_EQ(message("redis://host:0"), "Redis URL: the port is not a number of 1 to 65535");
  EXPECT_EQ(message("redis://host:65536"), "Redis URL: the port is not a number of 1 to 65535");
  EXPECT_EQ(message("redis://[::1]7"), "Redis URL: the port is not a number of 1 to 65535");
  EXPECT_EQ(message("redis://[::1"), "Redis URL: [ without ]");
  EXPECT_EQ(message("redis://host/x"), "Redis URL: the database behind the / is not a number");
  EXPECT_EQ(message("redis://host/1?timeout=3"), "Redis URL: takes no ? or #; percent-encode them in a password");
  EXPECT_EQ(message("redis://u@host"), "Redis URL: a user without a password");
  EXPECT_EQ(message("redis://:secret%zz@host"), "Redis URL: a % in the login is not followed by two hex digits");
  EXPECT_EQ(message("redis://a b"), "Redis URL: a space or control character in the host");
}

TEST(CircuitBreaker, OpensProbesAndCloses) {
  CircuitBreaker breaker(3, 100);
  EXPECT_FALSE(breaker.failed(0));
  EXPECT_FALSE(breaker.failed(0));
  EXPECT_FALSE(breaker.succeeded());  // in a row only
  EXPECT_FALSE(breaker.failed(0));
  EXPECT_FALSE(breaker.failed(0));
  EXPECT_TRUE(breaker.failed(10));
  EXPECT_TRUE(breaker.is_open());
  EXPECT_FALSE(breaker.take_probe(109));
  EXPECT_TRUE(breaker.take_probe(110));
  EXPECT_FALSE(breaker.take_probe(110));  // one at a time
  EXPECT_FALSE(breaker.failed(120));      // still open, for twice as long
  EXPECT_FALSE(breaker.take_probe(319));
  EXPECT_TRUE(breaker.take_probe(320));
  EXPECT_TRUE(breaker.succeeded());
  EXPECT_FALSE(breaker.is_open());
  EXPECT_EQ(breaker.n_openings(), 1u);
  EXPECT_EQ(breaker.n_probes(), 2u);
}

}  // namespace
}  // namespace pagoda::kv
