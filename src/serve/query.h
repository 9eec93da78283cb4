// What a request's query says. Values are taken as sent.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace pagoda::serve {

// The value of that name, the first if there are several; nothing if it is not there.
inline std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.substr(0, part.find('=')) == name) return part.substr(std::min(part.size(), name.size() + 1));
  }
  return std::nullopt;
}

// kInvalidArgument if it is no whole number.
inline Result<std::optional<uint64_t>> query_number(std::string_view query, std::string_view name) {
  const std::optional<std::string_view> digits = query_value(query, name);
  if (!digits) return std::nullopt;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), number);
  if (error == std::errc() && end == digits->data() + digits->size()) return number;
  return pagoda::fail(
      Error{ErrorCode::kInvalidArgument, fmt::format("{} must be a whole number, from 0", name), std::string(name)});
}

}  // namespace pagoda::serve
