// SessionId, and what clients may call sessions: names travel in paths, headers and logs as they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/id.h"

namespace pagoda::kv {

// A session, as long as it lives (sessions.h). Never reused; 0 names none.
using SessionId = Id<struct SessionIdTag, uint64_t>;

inline constexpr size_t kMaxSessionName = 128;

// 1 to 128 letters, digits and - _ . :, not only dots.
constexpr bool is_session_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  };
  return !name.empty() && name.size() <= kMaxSessionName && std::all_of(name.begin(), name.end(), is_allowed) &&
         name.find_first_not_of('.') != std::string_view::npos;
}

}  // namespace pagoda::kv
