#include "http/url.h"

namespace pagoda::http {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Target split_target(std::string_view target) {
  if (const size_t scheme = target.find("://"); scheme != std::string_view::npos && target.front() != '/') {
    const size_t path = target.find_first_of("/?", scheme + 3);
    target = path == std::string_view::npos ? std::string_view{} : target.substr(path);
  }
  target = target.substr(0, target.find('#'));
  const size_t question = target.find('?');
  Target split;
  split.path = target.substr(0, question);
  if (question != std::string_view::npos) split.query = target.substr(question + 1);
  if (split.path.empty()) split.path = "/";
  return split;
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

}  // namespace pagoda::http
