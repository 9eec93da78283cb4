// Hostile templates and messages end with a text or an error. Input: a template; a zero byte; messages.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view source = input.substr(0, zero);
  const std::string_view messages =
      zero == std::string_view::npos ? R"([{"role":"user","content":"hi"}])" : input.substr(zero + 1);
  const auto compiled = pagoda::text::ChatTemplate::compile(source, "<s>", "</s>");
  CHECK(compiled.has_value() || compiled.error().code != pagoda::ErrorCode::kInternal);  // that is a panic in Rust
  if (!compiled) return 0;
  const auto turns = pagoda::text::droppable_turns(messages);
  CHECK(turns.has_value() || turns.error().code != pagoda::ErrorCode::kInternal);
  const auto text = compiled->render(messages, R"([{"type":"function","function":{"name":"f"}}])",
                                     {.dropped_turns = turns.value_or(0)});
  CHECK(text.has_value() || (!text.error().message.empty() && text.error().code != pagoda::ErrorCode::kInternal));
  return 0;
}
