// What a client sends about a session, whatever its dialect. Pure. Rules as in openai.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pagoda::api {

struct SessionBody {
  std::string session_id;  // empty: none
  std::string cache_salt;  // likewise
  std::optional<int64_t> ttl_seconds;
};

inline constexpr int64_t kMaxTtlSeconds = int64_t{1} << 30;

// An empty body has no fields. Those that are not in `fields` are refused by name.
Result<SessionBody> parse_session_body(std::string_view body, std::span<const std::string_view> fields);

}  // namespace pagoda::api
