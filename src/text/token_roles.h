// TokenRoles: what each token is for, after the corrections that model files need: many type their end-of-turn or
// fill-in-the-middle tokens as ordinary text, so those known by their spelling become control tokens, as in llama.cpp.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/string_index.h"
#include "text/vocabulary.h"

namespace pagoda::text {

struct TokenRoles {
  std::vector<TokenType> types;       // [size]
  std::vector<bool> ends_generation;  // [size]

  bool is_control(TokenId id) const { return types[static_cast<size_t>(id.value)] == TokenType::kControl; }
};

// by_text: every token's spelling to its id. named_ends: ids the file names as EOS, EOT, EOM, all in range.
TokenRoles find_token_roles(std::span<const std::string_view> texts, std::span<const int32_t> types,
                            const StringIndex& by_text, std::span<const TokenId> named_ends);

}  // namespace pagoda::text
