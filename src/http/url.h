// Request targets: origin form ("/a?b") and absolute form ("http://host/a?b") into path and query.     Source: RFC 3986, RFC 9112 sec. 3.2.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pagoda::http {

struct Target {
  std::string_view path;   // as sent, still percent-encoded; "/" if the target had none
  std::string_view query;  // without the ?
};
Target split_target(std::string_view target);

// "%2F" -> "/". Nothing if a % is not followed by two hex digits. A + stays a +.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace pagoda::http
