// TokenizerMetadata: the tokenizer's part of a GGUF file's metadata, also of vocabulary-only files.
// Owns: the vectors; the strings are views into the Gguf, which must outlive them.
// Errors: kBadFile names the key and its file:offset.      Source: key names from the GGUF specification.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/token_id.h"
#include "weights/gguf.h"

namespace pagoda::weights {

struct TokenizerMetadata {
  std::string_view model;                               // "gpt2", "llama", ...
  std::string_view pre;                                 // pre-tokenizer; empty if the file names none
  std::string_view name;                                // general.name, raw bytes
  std::vector<std::string_view> tokens;                 // raw bytes, index = TokenId
  std::vector<float> scores;                            // as many as tokens, or none
  std::vector<int32_t> types;                           // as many as tokens, or none; GGUF's numbers
  std::vector<std::string_view> merges;                 // "left right", best first
  std::optional<TokenId> bos, eos, eot, eom, unk, pad;  // in range
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::string_view chat_template;  // empty if there is none
};

// kBadFile if there is no vocabulary, or its parts disagree.
Result<TokenizerMetadata> read_tokenizer_metadata(const Gguf& gguf);

}  // namespace pagoda::weights
