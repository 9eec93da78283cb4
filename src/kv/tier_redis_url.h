// Where a Redis or Valkey server is: redis://[[user][:password]@]host[:port][/db], percent-encoded as URLs are; [::1] for IPv6.
// Errors: kInvalidArgument names what is wrong with the URL, and never repeats its password.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pagoda::kv {

struct RedisAddress {
  std::string host{};
  uint16_t port = 6379;
  std::string user{};
  std::string password{};  // empty: no AUTH
  uint32_t db = 0;

  // host:port/db, for messages.
  std::string to_string() const;
};
Result<RedisAddress> parse_redis_url(std::string_view url);

}  // namespace pagoda::kv
