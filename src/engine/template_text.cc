#include "engine/template_text.h"

#include "text/tokenizer.h"

namespace pagoda::engine {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";  // what templates trim

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

}  // namespace

TextOf text_of(std::string_view rendered, size_t begin, size_t end, std::span<const std::string> message_texts) {
  size_t from = 0;
  for (const std::string& message_text : message_texts) {
    const std::string_view wanted = trimmed(message_text);
    if (wanted.empty()) continue;
    const size_t at = rendered.find(wanted, from);
    if (at == std::string_view::npos || rendered.find(wanted, at + 1) != std::string_view::npos)
      return TextOf::kUnknown;
    if (at > end) return TextOf::kTemplate;
    from = at + wanted.size();
    if (begin <= from) return TextOf::kMessages;
  }
  return message_texts.empty() ? TextOf::kUnknown : TextOf::kTemplate;
}

TextOf text_of(std::span<const TokenId> prompt, int32_t position, std::span<const std::string> message_texts,
               const text::Tokenizer& tokenizer) {
  if (message_texts.empty()) return TextOf::kUnknown;
  std::string rendered;
  size_t begin = 0, end = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i == static_cast<size_t>(position)) begin = rendered.size();
    const std::string_view bytes = tokenizer.token_bytes(prompt[i]);
    rendered += bytes.empty() ? tokenizer.token_text(prompt[i]) : bytes;
    if (i == static_cast<size_t>(position)) end = rendered.size();
  }
  return text_of(rendered, begin, end, message_texts);
}

}  // namespace pagoda::engine
