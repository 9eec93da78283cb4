// Whose a piece of a rendered chat prompt is: a message's, or the chat template's own (roles, tool lists, dates, separators).
// A template is a program: it may trim, reorder or leave out what it is given. So nothing is said unless every message text up to the
// piece is found in the prompt, once and in order.   Pure.   Cost: O(prompt).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/token_id.h"

namespace pagoda::text {
class Tokenizer;
}

namespace pagoda::engine {

enum class TextOf : uint8_t { kUnknown, kMessages, kTemplate };

// Of bytes [begin, end). What touches a message's text counts as the message's: where it ends, or a token that joins both.
TextOf text_of(std::string_view rendered, size_t begin, size_t end, std::span<const std::string> message_texts);

// Of the token at `position`. Requires 0 <= position < prompt.size().
TextOf text_of(std::span<const TokenId> prompt, int32_t position, std::span<const std::string> message_texts,
               const text::Tokenizer& tokenizer);

}  // namespace pagoda::engine
