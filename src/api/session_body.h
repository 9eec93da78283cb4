// What a client sends about a session, whatever its dialect. Pure. Rules as in openai.h.
#pragma once

#include <cstdint>
#include <optional>
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

// An empty body has no fields.
Result<SessionBody> parse_session_body(std::string_view body);

}  // namespace pagoda::api
