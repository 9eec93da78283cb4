// Keeps control tokens out of what users wrote on its way through a chat template. The template's own <|im_end|> must become that token;
// the same letters in a message must not, or a user could close their turn and speak as the system.
//
//   messages --mark--> messages with a mark inside each control token's text --template--> text --unmark--> text and guards
//
// and Tokenizer::encode lets no control token span a guard. The mark is U+FDD0, a noncharacter; one that a user sends is dropped.
// Threads: pure functions.     Cost: O(n).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace pagoda::text {

// `json`: messages or tools as JSON text without needless escapes.
std::string mark_user_text(const Tokenizer& tokenizer, std::string_view json);

struct UnmarkedText {
  std::string text;
  std::vector<size_t> guards;  // bytes of text, ascending, for EncodeOptions::guards
};
UnmarkedText unmark_user_text(std::string_view marked);

}  // namespace pagoda::text
