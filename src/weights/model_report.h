// ModelReport: what `inspect` tells about a model file, usable or not. Plain data, owns its strings.
// Units: bytes, elements, tokens.     Errors: none; what is wrong or missing is listed in `unsupported`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weights/gguf.h"
#include "weights/model_config.h"

namespace pagoda::weights {

struct TensorTypeBytes {
  std::string type;  // "Q4_K", or "type 99"
  int64_t n_tensors = 0;
  int64_t bytes = 0;
};

struct Unsupported {
  std::string what;  // a tensor's name, or the feature
  std::string why;
};

struct TokenizerSummary {
  std::string model;  // printable
  std::string pre;    // printable, may be empty
  int64_t n_tokens = 0;
  int64_t chat_template_bytes = 0;  // 0: there is none
};

struct ModelReport {
  std::string architecture;  // as the file says, printable
  std::string name;          // printable, may be empty
  uint32_t gguf_version = 0;
  int64_t n_parts = 0;
  int64_t file_bytes = 0;
  int64_t n_tensors = 0;
  int64_t parameters = 0;                     // elements of all tensors but rope_freqs
  std::vector<TensorTypeBytes> types;         // most bytes first
  std::optional<ModelConfig> config;          // empty: not a model Pagoda runs (see unsupported), or vocabulary only
  std::optional<TokenizerSummary> tokenizer;  // empty without a vocabulary
  std::vector<Unsupported> unsupported;
};

ModelReport describe(const Gguf& gguf);

}  // namespace pagoda::weights
