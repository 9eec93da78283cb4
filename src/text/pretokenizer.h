// PreTokenizer: cuts a text into words that byte-level BPE merges apart from each other; named by tokenizer.ggml.pre.
// Source: the split patterns of each model's tokenizer.json, with llama.cpp's reading of them where the two differ (for example
// it matches "\s+(?!\S)" inside each earlier split only), since token ids must equal llama.cpp's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/unicode.h"

namespace pagoda::text {

// Words as exclusive end positions, in code points, ascending; the last is the text's length.
using WordEnds = std::vector<uint32_t>;

struct PreTokenizer {
  // Cuts runes[begin, end) and appends the words' ends.
  using Pass = void (*)(const Runes& runes, uint32_t begin, uint32_t end, WordEnds& ends);

  std::vector<Pass> passes;  // each cuts the words of the one before
  bool whole_words = false;  // a word that is a token is taken whole, before any merge (ignore_merges)
  bool adds_bos = false;     // default of tokenizer.ggml.add_bos_token

  // kUnsupported names what is supported. An empty name is "default".
  static Result<PreTokenizer> find(std::string_view name);

  WordEnds split(const Runes& runes) const;
};

}  // namespace pagoda::text
