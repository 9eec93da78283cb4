#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace pagoda::text {
namespace {

constexpr uint32_t kReplacement = 0xFFFD;
constexpr uint32_t kMaxCodePoint = 0x10FFFF;

constexpr uint32_t kRanges[] = {
#include "text/unicode_table.inc"
};
constexpr size_t kPageBits = 8;
constexpr size_t kPages = (kMaxCodePoint >> kPageBits) + 1;

// Index of the range that holds each page's first code point, so that a look-up searches one page's ranges only.
constexpr std::array<uint16_t, kPages + 1> make_page_index() {
  std::array<uint16_t, kPages + 1> index{};
  size_t range = 0;
  for (size_t page = 0; page <= kPages; ++page) {
    while (range + 1 < std::size(kRanges) && (kRanges[range + 1] >> 3) <= (page << kPageBits)) ++range;
    index[page] = static_cast<uint16_t>(range);
  }
  return index;
}
constexpr std::array<uint16_t, kPages + 1> kPageIndex = make_page_index();

constexpr std::array<CharClass, 128> make_ascii_classes() {
  std::array<CharClass, 128> classes{};
  size_t range = 0;
  for (uint32_t c = 0; c < 128; ++c) {
    while ((kRanges[range + 1] >> 3) <= c) ++range;
    classes[c] = static_cast<CharClass>(kRanges[range] & 7);
  }
  return classes;
}
constexpr std::array<CharClass, 128> kAsciiClasses = make_ascii_classes();

bool is_continuation(std::string_view text, size_t i) {
  return i < text.size() && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80;
}

struct Decoded {
  uint32_t code_point;
  size_t length;  // source bytes
};

size_t utf8_bytes(uint32_t code_point) {
  return code_point < 0x80 ? 1 : code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
}

// One code point from text[i]; checks shape only (lead byte, continuation bytes), as llama.cpp does.
Decoded decode_one(std::string_view text, size_t i) {
  const uint8_t lead = static_cast<uint8_t>(text[i]);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xF8 ? 0 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
  if (length == 0) return {kReplacement, 1};
  uint32_t code_point = lead & (0x7Fu >> length);
  for (size_t k = 1; k < length; ++k) {
    if (!is_continuation(text, i + k)) return {kReplacement, 1};
    code_point = code_point << 6 | (static_cast<uint8_t>(text[i + k]) & 0x3F);
  }
  if (code_point > kMaxCodePoint) return {kReplacement, 1};
  return {code_point, length};
}

}  // namespace

CharClass char_class(uint32_t code_point) {
  if (code_point < 128) return kAsciiClasses[code_point];
  if (code_point > kMaxCodePoint) return CharClass::kOther;
  const size_t page = code_point >> kPageBits;
  const uint32_t* first = kRanges + kPageIndex[page];
  const uint32_t* last = kRanges + kPageIndex[page + 1] + 1;
  const uint32_t* after = std::upper_bound(first, last, code_point << 3 | 7);
  return static_cast<CharClass>(*(after - 1) & 7);
}

Runes decode_runes(std::string_view text) {
  Runes runes;
  runes.bytes.reserve(text.size());
  runes.code_points.reserve(text.size());
  runes.classes.reserve(text.size());
  runes.offsets.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_one(text, i);
    runes.offsets.push_back(static_cast<uint32_t>(runes.bytes.size()));
    runes.code_points.push_back(decoded.code_point);
    runes.classes.push_back(char_class(decoded.code_point));
    append_utf8(runes.bytes, decoded.code_point);
    i += decoded.length;
  }
  runes.offsets.push_back(static_cast<uint32_t>(runes.bytes.size()));
  return runes;
}

size_t decoded_bytes(std::string_view text) {
  size_t n_bytes = 0;
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_one(text, i);
    n_bytes += utf8_bytes(decoded.code_point);
    i += decoded.length;
  }
  return n_bytes;
}

bool decodes_to_itself(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Decoded decoded = decode_one(text, i);
    if (utf8_bytes(decoded.code_point) != decoded.length) return false;
    i += decoded.length;
  }
  return true;
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

size_t announced_length(uint8_t lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

std::optional<std::string> bytes_of_byte_level(std::string_view token_text) {
  // Printable Latin-1 bytes stand for themselves; the other 68, in order, are U+0100 to U+0143.
  constexpr auto kStandsForItself = [](uint32_t c) {
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
  };
  static constexpr std::array<uint8_t, 68> kShifted = [kStandsForItself] {
    std::array<uint8_t, 68> bytes{};
    size_t n = 0;
    for (uint32_t c = 0; c < 256; ++c) {
      if (!kStandsForItself(c)) bytes[n++] = static_cast<uint8_t>(c);
    }
    return bytes;
  }();
  std::string bytes;
  for (size_t i = 0; i < token_text.size();) {
    const Decoded decoded = decode_one(token_text, i);
    const uint32_t c = decoded.code_point;
    if (c < 256 && kStandsForItself(c)) {
      bytes.push_back(static_cast<char>(c));
    } else if (c >= 0x100 && c < 0x100 + kShifted.size()) {
      bytes.push_back(static_cast<char>(kShifted[c - 0x100]));
    } else {
      return std::nullopt;
    }
    i += decoded.length;
  }
  return bytes;
}

}  // namespace pagoda::text
