// BytePairMerger: byte-level BPE by ranked merges, as in GPT-2, behind a PreTokenizer.
// Works on raw bytes: token texts and merges are taken out of the byte-level alphabet once, at construction.
// Owner: copies the merges; token bytes are views into the Tokenizer's storage. Threads: immutable after construction.
// Source: Sennrich et al. 2016; token ids as llama.cpp's, including words whose parts are no tokens.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "text/longest_tokens.h"
#include "text/pretokenizer.h"
#include "text/string_index.h"
#include "text/symbol_merger.h"

namespace pagoda::text {

class BytePairMerger {
 public:
  // mergeable: (bytes, id) of every token user text may become. merges: "left right" in byte-level spelling, best first.
  struct Token {
    std::string_view bytes;
    TokenId id;
  };
  BytePairMerger(PreTokenizer pre_tokenizer, std::span<const Token> mergeable,
                 std::span<const std::string_view> merges);

  void encode(std::string_view text, std::vector<TokenId>& ids) const;
  // What encode() allocates at most, beside the ids: by the longest piece that cannot be cut.   Cost: a pass over the text.
  static size_t work_bytes(std::string_view text);
  // By byte of the text as it is after decoding (unicode.h, Runes).
  const LongestTokens& longest_tokens() const { return longest_; }

 private:
  // Per byte: first its code point, class, offset and, twice, the end of its word; then its symbol and what merges it.
  static constexpr size_t kPieceFactor = kMergeBytes + 8;

  static constexpr int32_t kNoToken = -1;
  struct PairSlot {
    int32_t left = -1, right = -1;
    uint32_t rank = MergeRule::kNone;
    int32_t joined = -1;
  };

  int32_t piece_of(std::string_view bytes);
  void add_merges(std::span<const std::string_view> merges);
  size_t pair_slot(int32_t left, int32_t right) const;
  void drop_lost_bytes();
  void encode_piece(std::string_view text, std::vector<Symbol>& symbols, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, std::vector<Symbol>& symbols, std::vector<TokenId>& ids) const;
  void emit(int32_t piece, std::string_view bytes, std::vector<TokenId>& ids) const;

  PreTokenizer pre_tokenizer_;
  StringIndex pieces_;                    // bytes -> piece number: tokens, and the merges' parts that are none
  std::vector<int32_t> token_of_piece_;   // kNoToken for such parts
  std::deque<std::string> part_bytes_;    // storage of merge parts' bytes
  std::array<int32_t, 256> byte_pieces_;  // piece of each single byte
  LongestTokens longest_;
  std::vector<PairSlot> pairs_;  // open addressing, at most half full
};

}  // namespace pagoda::text
