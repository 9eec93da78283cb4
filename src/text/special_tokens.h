// SpecialTokens: finds in a text the tokens that are matched before any merging, longest first, as llama.cpp partitions a prompt.
// Threads: immutable after construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/string_index.h"
#include "text/tokenizer.h"

namespace pagoda::text {

class SpecialTokens {
 public:
  enum class Matched : uint8_t {
    kAlways,     // user-defined tokens
    kWhenParsed  // control and unknown tokens: only in SpecialMode::kParse
  };
  enum class After : uint8_t {
    kKeepSpace,
    kStripSpace  // white space after the token is dropped (Phi-3)
  };
  struct Token {
    std::string_view text;  // in storage that outlives this object
    TokenId id;
    Matched matched = Matched::kAlways;
    After after = After::kKeepSpace;
  };
  // A stretch of the text: ordinary text if `token` is absent.
  struct Span {
    size_t begin, end;  // bytes
    TokenId token{-1};
    bool is_text() const { return token.value < 0; }
  };

  // tokens in ascending id; longer ones win, of one length the first after sorting as llama.cpp sorts.
  explicit SpecialTokens(std::vector<Token> tokens);

  // Bounds what partition() allocates: so many spans of the text are tokens at most.   Cost: a pass over the text.
  size_t count_matches(std::string_view text) const;
  static constexpr size_t kMatchBytes = 320;  // of a span: found, taken, cut out, in vectors that grow by doubling

  const std::vector<Token>& tokens() const { return tokens_; }
  bool strips_spaces() const { return !strip_after_.empty(); }

  // Spans in order; together they cover the text but for stripped white space. No token that is matched only when parsed spans a guard
  // (bytes of the text, ascending).
  std::vector<Span> partition(std::string_view text, SpecialMode mode, std::span<const size_t> guards = {}) const;

 private:
  struct Found {
    size_t begin;
    int32_t order;  // in tokens_
  };
  void mark_present_lengths(std::string_view text, std::vector<bool>& present) const;
  void strip_spaces(std::string_view text, std::vector<Span>& spans) const;
  std::vector<Found> find_all(std::string_view text, const std::vector<Span>& spans, size_t length, SpecialMode mode,
                              std::span<const size_t> guards) const;

  std::vector<Token> tokens_;                                 // by falling length
  StringIndex index_;                                         // text -> position in tokens_
  std::vector<std::vector<uint32_t>> lengths_of_first_byte_;  // [256] distinct lengths, falling
  std::vector<TokenId> strip_after_;                          // ascending
};

}  // namespace pagoda::text
