// ScoreMerger: SentencePiece-style merging for "llama" vocabularies (Gemma 3, Llama 2, Phi-3): join the adjacent pair whose joined
// text is the token of highest score; characters that are no token fall back to byte tokens.
// No pre-tokenizer cuts the text, so it is cut where that changes nothing: between two characters that no token has side by side.
// Owner: token texts are views into the Tokenizer's storage. Threads: immutable after construction.
// Source: Kudo and Richardson 2018, sec. 3.2 (BPE mode); token ids as llama.cpp's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/longest_tokens.h"
#include "text/string_index.h"
#include "text/symbol_merger.h"

namespace pagoda::text {

class ScoreMerger {
 public:
  // by_text: every token's spelling (blanks as U+2581) to its id; it outlives this object.
  // scores: [size], or empty for all 0. mergeable: [size], tokens that user text may become.
  // byte_tokens: what each byte falls back to; a byte without one becomes `unknown`, or nothing.
  ScoreMerger(const StringIndex& by_text, std::span<const std::string_view> texts, std::span<const float> scores,
              const std::vector<bool>& mergeable, const std::array<std::optional<TokenId>, 256>& byte_tokens,
              std::optional<TokenId> unknown);

  // text: with blanks already written as U+2581.
  void encode(std::string_view text, std::vector<TokenId>& ids) const;
  // What encode() allocates at most, beside the ids, for this text with its blanks spelled so: by its longest run.   Cost: a pass over it.
  size_t work_bytes(std::string_view text_with_blanks) const;
  // By byte of a text with its blanks.
  const LongestTokens& longest_tokens() const { return longest_; }

 private:
  bool may_join(std::string_view left_character, std::string_view right_character) const;
  static size_t neighbour_bit(std::string_view left_character, std::string_view right_character);
  void add_neighbours(std::string_view token_text);
  int32_t find_mergeable(std::string_view text) const;
  void encode_run(std::string_view text, std::vector<Symbol>& symbols, std::vector<TokenId>& ids) const;

  const StringIndex* by_text_;
  std::vector<uint32_t> priorities_;  // [size] by id, lower is better; MergeRule::kNone if user text may not become it
  LongestTokens longest_;
  std::vector<uint64_t>
      neighbours_;  // hashed set of character pairs found side by side in tokens; false hits only cost time
  std::array<std::optional<TokenId>, 256> byte_tokens_;
};

}  // namespace pagoda::text
