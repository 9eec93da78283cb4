#include "text/chat_template.h"

#include <textshim.h>

#include <utility>

#include "base/json_weight.h"

namespace pagoda::text {
namespace {

textshim_view view(std::string_view text) { return {text.data(), text.size()}; }

// Takes ownership of a text handed out by textshim.
std::string take(textshim_text text) {
  std::string copy(text.data == nullptr ? "" : text.data, text.size);
  textshim_text_free(text);
  return copy;
}

ErrorCode error_code(textshim_code code) {
  switch (code) {
    case TEXTSHIM_INVALID_ARGUMENT:
      return ErrorCode::kInvalidArgument;
    case TEXTSHIM_UNSUPPORTED:
      return ErrorCode::kUnsupported;
    case TEXTSHIM_EXHAUSTED:
      return ErrorCode::kResourceExhausted;
    default:
      return ErrorCode::kInternal;
  }
}

}  // namespace

Result<int> droppable_turns(std::string_view messages_json) {
  uint32_t n = 0;
  textshim_text text{};
  const textshim_code code = textshim_droppable_turns(view(messages_json), &n, &text);
  std::string message = take(text);
  if (code != TEXTSHIM_OK) return fail(Error{error_code(code), std::move(message), {}});
  return static_cast<int>(n);
}

void ChatTemplate::Deleter::operator()(textshim_template* compiled) const { textshim_template_free(compiled); }

Result<ChatTemplate> ChatTemplate::compile(std::string_view source, std::string_view bos_text,
                                           std::string_view eos_text) {
  textshim_template* compiled = nullptr;
  textshim_text text{};
  const textshim_code code = textshim_template_compile(view(source), view(bos_text), view(eos_text), &compiled, &text);
  std::string message = take(text);
  if (code != TEXTSHIM_OK) return fail(Error{error_code(code), std::move(message), "tokenizer.chat_template"});
  return ChatTemplate(compiled);
}

size_t ChatTemplate::work_bytes(std::initializer_list<std::string_view> json_texts) {
  // Measured (work_bytes_test.cc): texts as parsed, as the template's values, appended, and copied out; a tree of both kinds of values.
  constexpr size_t kTextCopies = 6, kContainerBytes = 192, kMemberBytes = 480, kElementBytes = 128;
  size_t sum = 0;
  for (const std::string_view text : json_texts) {
    const JsonWeight weight = weigh_json(text);
    sum += kTextCopies * weight.n_bytes + kContainerBytes * weight.n_containers + kMemberBytes * weight.n_members +
           kElementBytes * weight.n_elements;
  }
  return sum;
}

Result<std::string> ChatTemplate::render(std::string_view messages_json, std::string_view tools_json,
                                         const RenderOptions& options) const {
  const textshim_render_request request{
      .messages = view(messages_json),
      .tools = view(tools_json),
      .extra = view(options.extra_json),
      .now_s = options.now_s,
      .add_generation_prompt = options.generation_prompt == GenerationPrompt::kAdd ? 1 : 0,
      .dropped_turns = static_cast<uint32_t>(options.dropped_turns),
  };
  textshim_text text{};
  const textshim_code code = textshim_template_render(compiled_.get(), &request, &text);
  std::string answer = take(text);
  if (code != TEXTSHIM_OK) return fail(Error{error_code(code), std::move(answer), {}});
  return answer;
}

}  // namespace pagoda::text
