#include "api/json_text.h"

#include <cmath>
#include <cstdint>

#include "base/error.h"

namespace pagoda::api {
namespace {

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

void append_escape(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<uint8_t>(c));
  }
}

bool is_plain(char c) { return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f; }

}  // namespace

size_t utf8_sequence_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t n = lead >= 0xc2 && lead <= 0xdf ? 2 : (lead & 0xf0) == 0xe0 ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
  if (n == 0 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  const auto second = static_cast<uint8_t>(text[1]);
  const bool is_overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool is_surrogate = lead == 0xed && second >= 0xa0;
  const bool is_beyond = lead == 0xf4 && second >= 0x90;
  return is_overlong || is_surrogate || is_beyond ? 0 : n;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = utf8_sequence_bytes(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

size_t utf8_characters(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += is_continuation(c) ? 0 : 1;
  return n;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    size_t n = 0;
    while (n < text.size() && is_plain(text[n])) ++n;
    out += text.substr(0, n);
    text.remove_prefix(n);
    if (text.empty()) break;
    const size_t sequence = utf8_sequence_bytes(text);
    if (sequence > 1) {
      out += text.substr(0, sequence);
      text.remove_prefix(sequence);
      continue;
    }
    if (sequence == 1) {
      append_escape(out, text[0]);
    } else {
      out += "\xef\xbf\xbd";
    }
    text.remove_prefix(1);
  }
  out += '"';
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

void append_json_float(std::string& out, float value) {
  if (std::isnan(value) || value < -9999.0f) value = -9999.0f;
  if (value > 3e38f) value = 3e38f;
  const std::string digits = fmt::format("{}", value);
  out += digits;
  if (digits.find_first_of(".e") == std::string::npos) out += ".0";  // clients tell floats by the point
}

}  // namespace pagoda::api
