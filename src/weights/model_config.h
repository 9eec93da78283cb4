// ModelConfig: the numbers of a model, read from GGUF metadata and checked: every product of them fits int64, every
// division is exact. The tokenizer's part of the metadata: tokenizer_metadata.h.
// Units: elements, tokens.     Owns everything it holds.
// Errors: kUnsupported names the feature and what is supported; kBadFile names the key and its file:offset.
// Source: key names from the GGUF specification; defaults and derived numbers as llama.cpp has them (src/models/*.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "weights/gguf.h"

namespace pagoda::weights {

enum class Architecture : uint8_t { kLlama, kQwen2, kQwen3, kGemma3 };
std::string_view to_string(Architecture architecture);  // "llama", as in general.architecture

enum class RopeStyle : uint8_t {
  kAdjacentPairs,  // (x[2i], x[2i+1]) turn together: llama, whose GGUF weights are permuted for it
  kHalves,         // (x[i], x[i + dim/2]): qwen2, qwen3, gemma3
};
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };
std::string_view to_string(RopeScaling scaling);

// Pair i < dim/2 at position p turns by p * f(i), where f0(i) = freq_base^(-2i/dim) and
//   none: f0    linear: f0 / factor    llama3: f0 / freq_factors[i]
//   yarn: f0 * (r + (1 - r) / factor) with r = ext_factor * ramp(i), the ramp falling from 1 to 0 between the correction
//         dimensions of beta_fast and beta_slow (Peng et al. 2023, YaRN, sec. 3.2); cos and sin are times magnitude.
// Local (sliding-window) layers use local_freq_base and no scaling.
struct RopeConfig {
  RopeStyle style = RopeStyle::kHalves;
  int dim = 0;  // even, at most head_dim; elements of a head past it do not turn
  double freq_base = 10000;
  double local_freq_base = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  std::vector<float> freq_factors;  // [dim/2], llama3 only (tensor rope_freqs.weight)
  int64_t original_context = 0;     // tokens; yarn only
  double ext_factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  double magnitude = 1;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;  // general.name, printable; may be empty

  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;      // divides n_heads
  int head_dim = 0;        // of Q, K and V; multiple of 16
  int embed_dim = 0;       // multiple of 32
  int ffn_dim = 0;         // multiple of 32
  int vocab_size = 0;      // rows of the token embedding
  int context_length = 0;  // tokens the model was trained for
  float rms_eps = 0;
  RopeConfig rope;

  int sliding_window = 0;             // tokens a local layer's query sees, itself included; 0: every layer sees all
  std::vector<uint8_t> local_layers;  // [n_layers] 1 = sliding window; empty if there are none

  float attention_scale = 0;          // q·k is multiplied by it
  float attention_logit_softcap = 0;  // 0: none
  float final_logit_softcap = 0;      // 0: none
  float embedding_scale = 1;          // token embeddings are multiplied by it (gemma3: sqrt(embed_dim))

  bool is_local(int layer) const { return !local_layers.empty() && local_layers[static_cast<size_t>(layer)] != 0; }
  int n_local_layers() const;
};

// kUnsupported for other architectures and for experts, non-causal attention, unequal layers.
Result<ModelConfig> read_model_config(const Gguf& gguf);

}  // namespace pagoda::weights
