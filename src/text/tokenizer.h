// Tokenizer: text to token ids and back, equal id for id to llama.cpp's for the same GGUF metadata
// (tests/golden/tokens). Kinds: "gpt2" (byte-level BPE behind a named pre-tokenizer) and "llama" (SentencePiece-style
// score-ordered merging, byte fallback). Invalid UTF-8 in the text is never an error: gpt2 kinds read each bad byte as
// U+FFFD, llama kinds emit byte tokens. Control tokens come out of encode() only through BOS/EOS and
// SpecialMode::kParse, never from merging user text. Threads: immutable after create(); every method is const and may
// run concurrently. Cost: encode is O(n log n) in the length of one unsplittable run, otherwise O(n); see
// tokenizer_bench.cc for MB/s and load times.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/token_id.h"
#include "text/vocabulary.h"

namespace pagoda::text {

enum class BosMode {
  kAuto,  // BOS and EOS as the model file says
  kOn,    // BOS always (if the model has one), EOS as the model file says
  kOff,   // neither
};
enum class SpecialMode {
  kPlain,  // control tokens' texts are ordinary text; user-defined tokens still match, as in training
  kParse,  // control tokens' texts become those tokens: for rendered chat templates, never for user text alone
};

struct EncodeOptions {
  BosMode bos = BosMode::kAuto;
  SpecialMode special = SpecialMode::kPlain;
  std::span<const size_t> guards = {};  // bytes of the text, ascending: no control token spans one (user_text.h)
};

class Tokenizer {
 public:
  // About the memory that a tokenizer of so many tokens, spelled in text_bytes, and merges holds.
  static size_t memory_bytes(size_t n_tokens, size_t text_bytes, size_t n_merges);

  // kUnsupported: unknown model or pre-tokenizer (the message lists what is supported); kBadFile: inconsistent
  // metadata.
  static Result<Tokenizer> create(const Vocabulary& vocabulary);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // At least so many tokens come of the text, whatever the options; without tokenizing it. Proven in longest_tokens.h; what may be dropped or
  // changed before it is merged (white space behind some special tokens, malformed UTF-8, bytes that stand for no token) counts as nothing, or
  // as little as can be.     Cost: a pass over the text.
  int64_t least_tokens(std::string_view text) const;
  // encode() allocates at most so many bytes, its result included.     Cost: some passes over the text.
  size_t work_bytes(std::string_view text) const;
  // As work_bytes, of any text of that many bytes.
  static constexpr size_t kMostWorkFactor = 512;

  // control_token_begins() allocates at most so many bytes.
  size_t search_bytes(std::string_view text) const;
  // Where SpecialMode::kParse would find a control token whose text is longer than a byte.
  std::vector<size_t> control_token_begins(std::string_view text) const;

  // The bytes a token adds to the output text: may be part of a UTF-8 character (StreamDecoder joins them). Empty for
  // control and unknown tokens and for ids out of range.
  std::string_view token_bytes(TokenId id) const;
  // The token as the model file spells it, control tokens included. Empty out of range.
  std::string_view token_text(TokenId id) const;
  // The token whose file spelling this is, control tokens included.
  std::optional<TokenId> find_token(std::string_view token_text) const;
  bool is_control(TokenId id) const;
  // EOS, EOT, EOM and the tokens known by their text to end a turn or an answer (<|im_end|>, <end_of_turn>, ...).
  bool is_end_of_generation(TokenId id) const;

  size_t size() const;  // tokens in the vocabulary; valid ids are [0, size)
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  bool adds_bos() const;  // what BosMode::kAuto does

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace pagoda::text
