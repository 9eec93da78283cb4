// JSON as text: what answers are written with. Answers have fixed shapes and are written once per token, so they are appended piece by
// piece, in the order clients know, instead of going through a tree.
// Errors: none: bytes that are not UTF-8 become U+FFFD, numbers that JSON lacks are clamped.     Source: RFC 8259; Unicode 15, table 3-7.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pagoda::api {

// Appends text in quotes, escaped.
void append_json_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);

// Shortest digits that read back as the same float; not-a-number and -infinity are written as -9999, as other servers do for log-probabilities.
void append_json_float(std::string& out, float value);

// The whole sequence at the start of text (1-4 bytes), or 0 if there is none.
size_t utf8_sequence_bytes(std::string_view text);
bool is_utf8(std::string_view text);
// Characters, counted by their first bytes, so that pieces of one character add up to one.
size_t utf8_characters(std::string_view text);

}  // namespace pagoda::api
