// ServedModel: what a model is to requests: its name, tokenizer, chat template and limits. Immutable once made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/config.h"
#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "weights/gguf.h"

namespace pagoda::engine {

struct ServedModel {
  ModelInfo info;
  text::Tokenizer tokenizer;
  std::vector<TokenId> end_tokens;  // that end an answer, ascending
  // The file's own template or the one given; an error says why chat is not possible.
  Result<text::ChatTemplate> chat_template;
  ContextPolicy context_policy{};  // of requests that name none

  // Reads tokenizer and template; the caller fills in info's context and size.
  static Result<ServedModel> make(const weights::Gguf& gguf, const EngineConfig& config);
};

// The tokenizer alone: a vocabulary-only file is enough.
Result<text::Tokenizer> make_tokenizer(const weights::Gguf& gguf);

}  // namespace pagoda::engine
