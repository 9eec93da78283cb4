// Vocabulary: a model file's tokenizer metadata as plain views; engine fills it from weights, Tokenizer::create copies
// what it needs. A missing key is an empty view or nullopt: Tokenizer::create applies the same defaults as llama.cpp
// does. Owner: the views point into the caller's file mapping and need to live only until create() returns.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/token_id.h"

namespace pagoda::text {

// tokenizer.ggml.token_type values (gguf's TokenType).
enum class TokenType : int32_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct Vocabulary {
  std::string_view model;                    // tokenizer.ggml.model: "gpt2" or "llama"
  std::string_view pre;                      // tokenizer.ggml.pre: pre-tokenizer of a gpt2 model, empty = "default"
  std::string_view name;                     // general.name: Phi-3 files strip white space after special tokens
  std::span<const std::string_view> tokens;  // tokenizer.ggml.tokens: raw bytes, index = TokenId
  std::span<const float> scores;             // tokenizer.ggml.scores: empty, or one per token
  std::span<const int32_t> types;            // tokenizer.ggml.token_type: TokenType values; empty, or one per token
  std::span<const std::string_view> merges;  // tokenizer.ggml.merges: "left right", best first
  std::optional<TokenId> bos, eos, eot, eom, unk, pad;     // tokenizer.ggml.{bos,eos,...}_token_id
  std::optional<bool> add_bos, add_eos, add_space_prefix;  // tokenizer.ggml.add_{bos_token,eos_token,space_prefix}
};

}  // namespace pagoda::text
