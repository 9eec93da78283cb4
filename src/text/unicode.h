// Code points and their classes for pre-tokenizers, and the byte alphabet of byte-level BPE.
// Classes are those of Unicode 15.1, the version llama.cpp's tables hold, because token ids depend on them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pagoda::text {

enum class CharClass : uint8_t {
  kOther = 0,
  kLetter = 1,
  kNumber = 2,
  kMark = 3,
  kPunctuation = 4,
  kSymbol = 5,
  kSpace = 6
};

CharClass char_class(uint32_t code_point);

// A text as pre-tokenizers read it. bytes is the source with every byte that starts no character replaced by U+FFFD and overlong
// forms shortened, as llama.cpp reads UTF-8; surrogates pass. Code point i is bytes[offsets[i], offsets[i+1]).
struct Runes {
  std::string bytes;
  std::vector<uint32_t> code_points;  // [n]
  std::vector<CharClass> classes;     // [n]
  std::vector<uint32_t> offsets;      // [n + 1]
};

// Of text, decoded.
size_t decoded_bytes(std::string_view text);
// No byte is replaced and no form is shortened by decoding.
bool decodes_to_itself(std::string_view text);

// Requires: text shorter than 1 GiB.
Runes decode_runes(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);

// Bytes a lead byte announces, by its high four bits alone: 1 for ASCII and continuation bytes. The unit of "llama" merging.
size_t announced_length(uint8_t lead);

// Byte-level BPE spells each byte as one printable code point (Radford et al. 2019, encoder.py bytes_to_unicode): the token text
// back in raw bytes, or nullopt if a character of it is not in that alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view token_text);

}  // namespace pagoda::text
