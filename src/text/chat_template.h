// ChatTemplate: a model's Jinja chat template, compiled once, rendered per request as Hugging Face transformers renders
// it (trim_blocks, lstrip_blocks, Python string/dict methods, tojson, strftime_now, raise_exception, namespace,
// break/continue). Messages, tools and extra variables are JSON text that only textshim parses. A message's content may
// be a list of parts: it is passed as such if the template can take parts, else flattened to its texts joined by
// newlines; and the other way round for a template that takes only parts. Threads: immutable after compile(); render()
// may run concurrently. Errors: kInvalidArgument: bad JSON, raise_exception (its message is the error's) or an
// expression that fails on these messages; kUnsupported: the template does not compile; kResourceExhausted: the
// template loops or writes beyond its limits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

struct textshim_template;

namespace pagoda::text {

enum class GenerationPrompt {
  kAdd,   // end with the assistant's header, so that the model answers
  kOmit,  // the conversation alone
};

struct RenderOptions {
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
  std::string_view extra_json = {};  // a JSON object of further template variables (chat_template_kwargs), or empty
  int64_t now_s = 0;      // what strftime_now shows: seconds since 1970, already shifted to the wanted time zone
  int dropped_turns = 0;  // that many of the oldest turns are left out
};

// A turn is a message of the user and what follows it up to the next one. System messages are in none of them: they always stay.
// How many of the oldest turns can be left out: all but the last.
Result<int> droppable_turns(std::string_view messages_json);

class ChatTemplate {
 public:
  // bos_text and eos_text become the template's bos_token and eos_token.
  static Result<ChatTemplate> compile(std::string_view source, std::string_view bos_text, std::string_view eos_text);

  // render() allocates at most so many bytes for these JSON texts together, its result included.     Cost: one pass over each.
  static size_t work_bytes(std::initializer_list<std::string_view> json_texts);

  // messages_json: a JSON array of message objects. tools_json: a JSON array, or empty for none.
  Result<std::string> render(std::string_view messages_json, std::string_view tools_json,
                             const RenderOptions& options = {}) const;

 private:
  struct Deleter {
    void operator()(textshim_template* compiled) const;
  };
  explicit ChatTemplate(textshim_template* compiled) : compiled_(compiled) {}
  std::unique_ptr<textshim_template, Deleter> compiled_;
};

}  // namespace pagoda::text
