// A look at JSON text before and beside parsing it: nesting depth without recursion, and the members of an object as they were written.
// Whether the text is JSON at all is the parser's business: on other text these say something, but nothing of use.
// Cost: one pass over the text.     Threads: pure.
#pragma once

#include <optional>
#include <string_view>

namespace pagoda::api {

// The deepest nesting of arrays and objects; stops counting at `limit`.
int json_depth(std::string_view text, int limit);

// The value of the object's member `name` as it stands in the text, keys in their order and numbers digit by digit. The last one if the
// name occurs twice, as the parser does. `object_text` must be valid JSON.
std::optional<std::string_view> raw_member(std::string_view object_text, std::string_view name);

}  // namespace pagoda::api
