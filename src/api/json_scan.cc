#include "api/json_scan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace pagoda::api {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

size_t skip_blanks(std::string_view text, size_t at) {
  while (at < text.size() && is_blank(text[at])) ++at;
  return at;
}

// `at` is on the opening quote; the position after the closing one.
size_t skip_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

// The position after the value that starts at `at`.
size_t skip_value(std::string_view text, size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = skip_string(text, at);
    } else if (c == '[' || c == '{') {
      ++depth;
      ++at;
      continue;
    } else if (depth > 0) {
      ++at;
      if (c == ']' || c == '}') --depth;
    } else {
      while (at < text.size() && text[at] != ',' && text[at] != '}' && text[at] != ']' && !is_blank(text[at])) ++at;
    }
    if (depth == 0) break;
  }
  return at;
}

bool names(std::string_view quoted, std::string_view name) {
  if (quoted.size() < 2) return false;
  if (quoted.find('\\') == std::string_view::npos) return quoted.substr(1, quoted.size() - 2) == name;
  const nlohmann::json key = nlohmann::json::parse(quoted, nullptr, false);
  return key.is_string() && key.get_ref<const std::string&>() == name;
}

}  // namespace

int json_depth(std::string_view text, int limit) {
  int depth = 0, deepest = 0;
  for (size_t at = 0; at < text.size() && deepest < limit;) {
    const char c = text[at];
    if (c == '"') {
      at = skip_string(text, at);
      continue;
    }
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
    ++at;
  }
  return deepest;
}

std::optional<std::string_view> raw_member(std::string_view object_text, std::string_view name) {
  std::optional<std::string_view> found;
  if (object_text.starts_with("\xef\xbb\xbf"))
    object_text.remove_prefix(3);  // a byte order mark, which the parser skips too
  size_t at = skip_blanks(object_text, 0);
  if (at >= object_text.size() || object_text[at] != '{') return found;
  ++at;
  while (true) {
    at = skip_blanks(object_text, at);
    if (at >= object_text.size() || object_text[at] != '"') return found;
    const size_t key_end = skip_string(object_text, at);
    const std::string_view key = object_text.substr(at, key_end - at);
    at = skip_blanks(object_text, key_end);
    if (at >= object_text.size() || object_text[at] != ':') return found;
    at = skip_blanks(object_text, at + 1);
    const size_t value_end = skip_value(object_text, at);
    if (names(key, name)) found = object_text.substr(at, value_end - at);
    at = skip_blanks(object_text, value_end);
    if (at >= object_text.size() || object_text[at] != ',') return found;
    ++at;
  }
}

}  // namespace pagoda::api
