#include "weights/model_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "weights/gguf_parse.h"

namespace pagoda::weights {
namespace {

// Bounds far above any model there is, and low enough that every product the program forms fits int64.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxEmbedDim = 1 << 17;
constexpr int64_t kMaxFfnDim = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 22;
constexpr int64_t kMaxContext = 1 << 28;
constexpr int kCellCols = 32;  // columns of a weight come in cells

constexpr Architecture kArchitectures[] = {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3,
                                           Architecture::kGemma3};

// Reads keys below "<architecture>.".
class Reader {
 public:
  Reader(const Gguf& gguf, std::string_view prefix) : gguf_(gguf), prefix_(prefix) {}

  std::string key(std::string_view suffix) const { return fmt::format("{}.{}", prefix_, suffix); }

  tl::unexpected<Error> bad(std::string_view suffix, std::string_view message) const {
    return fail(gguf_.error_at(ErrorCode::kBadFile, key(suffix), fmt::format("{} {}", key(suffix), message)));
  }
  tl::unexpected<Error> unsupported(std::string_view suffix, std::string_view message) const {
    return fail(gguf_.error_at(ErrorCode::kUnsupported, key(suffix), fmt::format("{}: {}", key(suffix), message)));
  }

  // In [1, max].
  Result<int> count(std::string_view suffix, int64_t max) const {
    TRY_ASSIGN(const std::optional<int> value, optional_count(suffix, max));
    if (!value) return bad(suffix, "is missing");
    return *value;
  }

  Result<std::optional<int>> optional_count(std::string_view suffix, int64_t max) const {
    TRY_ASSIGN(const std::optional<int64_t> value, gguf_.get_i64(key(suffix)));
    if (!value) return std::nullopt;
    return in_range(suffix, *value, max);
  }

  // One number for all layers, or one per layer if they are all equal.
  Result<std::optional<int>> uniform_count(std::string_view suffix, int n_layers, int64_t max) const {
    const GgufValue* value = gguf_.find_value(key(suffix));
    if (value == nullptr || value->shape == GgufShape::kScalar) return optional_count(suffix, max);
    TRY_ASSIGN(const std::optional<std::vector<int64_t>> layers, gguf_.get_array_i64(key(suffix)));
    if (!layers || layers->size() < static_cast<size_t>(n_layers)) {
      return bad(suffix, fmt::format("has fewer entries than the {} layers", n_layers));
    }
    if (std::ranges::any_of(*layers, [&](int64_t n) { return n != layers->front(); })) {
      return unsupported(suffix, "layers of different sizes are not supported");
    }
    return in_range(suffix, layers->front(), max);
  }

  // Finite and in [min, max].
  Result<std::optional<double>> real(std::string_view suffix, double min, double max) const {
    TRY_ASSIGN(const std::optional<double> value, gguf_.get_f64(key(suffix)));
    if (value && !(*value >= min && *value <= max)) {
      return bad(suffix, fmt::format("is {}, not {} to {}", *value, min, max));
    }
    return value;
  }

 private:
  Result<std::optional<int>> in_range(std::string_view suffix, int64_t value, int64_t max) const {
    if (value < 1 || value > max) return bad(suffix, fmt::format("is {}, not 1 to {}", value, max));
    return static_cast<int>(value);
  }

  const Gguf& gguf_;
  std::string_view prefix_;
};

Result<Architecture> read_architecture(const Gguf& gguf) {
  constexpr std::string_view kKey = "general.architecture";
  TRY_ASSIGN(const std::optional<std::string_view> name, gguf.get_string(kKey));
  if (!name) return fail(gguf.error_at(ErrorCode::kBadFile, kKey, "general.architecture is missing"));
  for (const Architecture architecture : kArchitectures) {
    if (*name == to_string(architecture)) return architecture;
  }
  return fail(gguf.error_at(
      ErrorCode::kUnsupported, kKey,
      fmt::format("architecture \"{}\" is not supported (llama, qwen2, qwen3 and gemma3 are)", printable(*name))));
}

Status read_sizes(const Reader& reader, ModelConfig* config) {
  TRY_ASSIGN(config->n_layers, reader.count("block_count", kMaxLayers));
  TRY_ASSIGN(config->embed_dim, reader.count("embedding_length", kMaxEmbedDim));
  TRY_ASSIGN(config->context_length, reader.count("context_length", kMaxContext));
  const auto required = [&](std::string_view suffix, int64_t max) -> Result<int> {
    TRY_ASSIGN(const std::optional<int> value, reader.uniform_count(suffix, config->n_layers, max));
    if (!value) return reader.bad(suffix, "is missing");
    return *value;
  };
  TRY_ASSIGN(config->ffn_dim, required("feed_forward_length", kMaxFfnDim));
  TRY_ASSIGN(config->n_heads, required("attention.head_count", kMaxHeads));
  TRY_ASSIGN(const std::optional<int> n_kv_heads,
             reader.uniform_count("attention.head_count_kv", config->n_layers, kMaxHeads));
  config->n_kv_heads = n_kv_heads.value_or(config->n_heads);
  if (config->n_heads % config->n_kv_heads != 0) {
    return reader.bad("attention.head_count_kv",
                      fmt::format("is {}, which does not divide the {} heads", config->n_kv_heads, config->n_heads));
  }
  if (config->embed_dim % kCellCols != 0) {
    return reader.unsupported("embedding_length", fmt::format("{} is not a multiple of 32", config->embed_dim));
  }
  if (config->ffn_dim % kCellCols != 0) {
    return reader.unsupported("feed_forward_length", fmt::format("{} is not a multiple of 32", config->ffn_dim));
  }
  return {};
}

Status read_head_dim(const Reader& reader, ModelConfig* config) {
  TRY_ASSIGN(const std::optional<int> key_length, reader.optional_count("attention.key_length", kMaxHeadDim));
  if (!key_length && config->embed_dim % config->n_heads != 0) {
    return reader.bad("attention.head_count", fmt::format("is {}, which does not divide the embedding length {}",
                                                          config->n_heads, config->embed_dim));
  }
  config->head_dim = key_length.value_or(config->embed_dim / config->n_heads);
  TRY_ASSIGN(const std::optional<int> value_length, reader.optional_count("attention.value_length", kMaxHeadDim));
  const int implied_value_length = config->embed_dim % config->n_heads == 0 ? config->embed_dim / config->n_heads : 0;
  if (value_length.value_or(implied_value_length) != config->head_dim) {
    return reader.unsupported("attention.value_length", "values of another length than keys are not supported");
  }
  if (config->head_dim % 16 != 0 || config->head_dim > kMaxHeadDim || config->n_heads * config->head_dim % 32 != 0) {
    return reader.unsupported(
        "attention.key_length",
        fmt::format("{} heads of {} elements: a head must be a multiple of 16 and at most {}, all "
                    "heads a multiple of 32",
                    config->n_heads, config->head_dim, kMaxHeadDim));
  }
  return {};
}

// What would make a model of these families something else.
Status refuse_variants(const Gguf& gguf, const Reader& reader) {
  TRY_ASSIGN(const std::optional<int64_t> n_experts, gguf.get_i64(reader.key("expert_count")));
  if (n_experts.value_or(0) != 0) return reader.unsupported("expert_count", "mixtures of experts are not supported");
  TRY_ASSIGN(const std::optional<bool> causal, gguf.get_bool(reader.key("attention.causal")));
  if (!causal.value_or(true)) return reader.unsupported("attention.causal", "bidirectional attention is not supported");
  return {};
}

Status read_vocab_size(const Gguf& gguf, const Reader& reader, ModelConfig* config) {
  const TensorInfo* embedding = gguf.find("token_embd.weight");
  const GgufValue* tokens = gguf.find_value("tokenizer.ggml.tokens");
  TRY_ASSIGN(const std::optional<int> named, reader.optional_count("vocab_size", kMaxVocab));
  int64_t size = named.value_or(0);
  if (tokens != nullptr && tokens->shape == GgufShape::kArray) {
    size = static_cast<int64_t>(std::min<uint64_t>(tokens->count, std::numeric_limits<int64_t>::max()));
  }
  if (embedding != nullptr) {
    if (size != 0 && size != embedding->rows()) {
      return fail(gguf.error_at(
          ErrorCode::kBadFile, *embedding,
          fmt::format("token_embd.weight has {} rows for a vocabulary of {} tokens", embedding->rows(), size)));
    }
    size = embedding->rows();
  }
  if (size < 1 || size > kMaxVocab) {
    return fail(gguf.error_at(ErrorCode::kBadFile, "tokenizer.ggml.tokens",
                              fmt::format("the vocabulary has {} tokens, not 1 to {}", size, kMaxVocab)));
  }
  config->vocab_size = static_cast<int>(size);
  return {};
}

Status read_freq_factors(const Gguf& gguf, const Reader& reader, RopeConfig* rope) {
  const TensorInfo* factors = gguf.find("rope_freqs.weight");
  if (factors == nullptr) return {};
  if (rope->scaling != RopeScaling::kNone) {
    return reader.unsupported("rope.scaling.type", "rope_freqs.weight beside another rope scaling is not supported");
  }
  if (factors->dtype != tensor::DType::kF32 || factors->n_elements() != rope->dim / 2) {
    return fail(gguf.error_at(ErrorCode::kBadFile, *factors,
                              fmt::format("rope_freqs.weight is {} {}, not F32 [{}]", shape_string(*factors),
                                          tensor::gguf_type_name(factors->gguf_type), rope->dim / 2)));
  }
  rope->scaling = RopeScaling::kLlama3;
  rope->freq_factors.resize(static_cast<size_t>(rope->dim / 2));
  std::memcpy(rope->freq_factors.data(), factors->bytes.data(), factors->bytes.size());
  if (std::ranges::any_of(rope->freq_factors, [](float f) { return !(f > 0.0F && f < 1e6F); })) {
    return fail(gguf.error_at(ErrorCode::kBadFile, *factors, "rope_freqs.weight holds a factor outside (0, 1e6)"));
  }
  return {};
}

// llama.cpp's cos and sin grow by 0.1 ln(factor) + 1, less what yarn_log_multiplier takes back.
Status read_yarn(const Reader& reader, const ModelConfig& config, RopeConfig* rope) {
  TRY_ASSIGN(const std::optional<int> original,
             reader.optional_count("rope.scaling.original_context_length", kMaxContext));
  rope->original_context = original.value_or(config.context_length);
  const auto read = [&](std::string_view suffix, double min, double max, double* out) -> Status {
    TRY_ASSIGN(const std::optional<double> value, reader.real(suffix, min, max));
    *out = value.value_or(*out);
    return {};
  };
  TRY(read("rope.scaling.yarn_ext_factor", 0, 1, &rope->ext_factor));
  TRY(read("rope.scaling.yarn_beta_fast", 1e-3, 1e6, &rope->beta_fast));
  TRY(read("rope.scaling.yarn_beta_slow", 1e-3, 1e6, &rope->beta_slow));
  double attn_factor = 1;
  double log_multiplier = 0;
  TRY(read("rope.scaling.attn_factor", 1e-3, 1e3, &attn_factor));
  TRY(read("rope.scaling.yarn_log_multiplier", 0, 100, &log_multiplier));
  const double log_factor = 0.1 * std::log(std::max(rope->factor, 1.0));
  rope->magnitude =
      rope->ext_factor == 0 ? attn_factor : attn_factor * (log_factor + 1) / (log_multiplier * log_factor + 1);
  return {};
}

Status read_rope(const Gguf& gguf, const Reader& reader, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  const bool is_llama = config->architecture == Architecture::kLlama;
  rope.style = is_llama ? RopeStyle::kAdjacentPairs : RopeStyle::kHalves;
  TRY_ASSIGN(const std::optional<int> dim, reader.optional_count("rope.dimension_count", kMaxHeadDim));
  rope.dim = dim.value_or(config->head_dim);
  if (rope.dim > config->head_dim || rope.dim % 2 != 0 || (is_llama && rope.dim != config->head_dim)) {
    return reader.bad("rope.dimension_count", fmt::format("is {} for heads of {}", rope.dim, config->head_dim));
  }
  TRY_ASSIGN(const std::optional<double> base, reader.real("rope.freq_base", 1, 1e12));
  rope.freq_base = base.value_or(rope.freq_base);
  TRY_ASSIGN(const std::optional<double> local_base, reader.real("rope.freq_base_swa", 1, 1e12));
  rope.local_freq_base = local_base.value_or(rope.local_freq_base);

  TRY_ASSIGN(std::optional<double> factor, reader.real("rope.scaling.factor", 0, 1e6));
  if (!factor) {
    TRY_ASSIGN(factor, reader.real("rope.scale_linear", 0, 1e6));  // the key's older name
  }
  rope.factor = factor.value_or(0) == 0 ? 1 : *factor;
  TRY_ASSIGN(const std::optional<std::string_view> type, gguf.get_string(reader.key("rope.scaling.type")));
  const std::string_view scaling = type.value_or("linear");
  if (scaling == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    TRY(read_yarn(reader, *config, &rope));
  } else if (scaling == "linear") {
    rope.scaling = rope.factor == 1 ? RopeScaling::kNone : RopeScaling::kLinear;
  } else if (scaling == "none") {
    rope.factor = 1;
  } else {
    return reader.unsupported(
        "rope.scaling.type",
        fmt::format("\"{}\" is not supported (none, linear, llama3's factors and yarn are)", printable(scaling)));
  }
  return is_llama ? read_freq_factors(gguf, reader, &rope) : Status{};
}

// Every sixth layer sees everything unless the file says otherwise, by a period or layer by layer.
Status read_local_layers(const Gguf& gguf, const Reader& reader, ModelConfig* config) {
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  TRY_ASSIGN(const std::optional<int64_t> window, gguf.get_i64(reader.key("attention.sliding_window")));
  if (window.value_or(0) == 0) return {};
  TRY_ASSIGN(config->sliding_window, reader.count("attention.sliding_window", kMaxContext));
  const auto n_layers = static_cast<size_t>(config->n_layers);
  const GgufValue* pattern = gguf.find_value(reader.key(kPattern));
  if (pattern != nullptr && pattern->shape == GgufShape::kArray) {
    TRY_ASSIGN(const std::optional<std::vector<int64_t>> flags, gguf.get_array_i64(reader.key(kPattern)));
    if (!flags || flags->size() < n_layers) {
      return reader.bad(kPattern, fmt::format("has fewer entries than the {} layers", n_layers));
    }
    for (size_t i = 0; i < n_layers; ++i) config->local_layers.push_back((*flags)[i] != 0 ? 1 : 0);
    return {};
  }
  TRY_ASSIGN(const std::optional<uint64_t> named, gguf.get_u64(reader.key(kPattern)));
  const uint64_t period = named.value_or(6);
  for (size_t i = 0; i < n_layers; ++i) {
    config->local_layers.push_back(period == 0 || i % period < period - 1 ? 1 : 0);
  }
  return {};
}

Status read_scales(const Gguf& gguf, const Reader& reader, ModelConfig* config) {
  TRY_ASSIGN(const std::optional<double> eps, reader.real("attention.layer_norm_rms_epsilon", 1e-12, 0.1));
  if (!eps) return reader.bad("attention.layer_norm_rms_epsilon", "is missing");
  config->rms_eps = static_cast<float>(*eps);
  config->attention_scale = 1.0F / std::sqrt(static_cast<float>(config->head_dim));
  if (config->architecture != Architecture::kGemma3) return {};
  constexpr int kLayersOf27B = 62;  // its query scale is 1/sqrt(embed_dim / n_heads); all others' 1/sqrt(head_dim)
  if (config->n_layers == kLayersOf27B) {
    config->attention_scale = 1.0F / std::sqrt(static_cast<float>(config->embed_dim / config->n_heads));
  }
  config->embedding_scale = std::sqrt(static_cast<float>(config->embed_dim));
  TRY_ASSIGN(const std::optional<double> attention_cap, reader.real("attn_logit_softcapping", 0, 1e6));
  TRY_ASSIGN(const std::optional<double> final_cap, reader.real("final_logit_softcapping", 0, 1e6));
  config->attention_logit_softcap = static_cast<float>(attention_cap.value_or(0));
  config->final_logit_softcap = static_cast<float>(final_cap.value_or(0));
  return read_local_layers(gguf, reader, config);
}

}  // namespace

std::string_view to_string(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kGemma3:
      break;
  }
  return "gemma3";
}

std::string_view to_string(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      break;
  }
  return "yarn";
}

int ModelConfig::n_local_layers() const {
  return static_cast<int>(std::ranges::count_if(local_layers, [](uint8_t local) { return local != 0; }));
}

Result<ModelConfig> read_model_config(const Gguf& gguf) {
  ModelConfig config;
  TRY_ASSIGN(config.architecture, read_architecture(gguf));
  const Reader reader(gguf, to_string(config.architecture));
  TRY_ASSIGN(const std::optional<std::string_view> name, gguf.get_string("general.name"));
  config.name = printable(name.value_or(""));
  TRY(refuse_variants(gguf, reader));
  TRY(read_sizes(reader, &config));
  TRY(read_head_dim(reader, &config));
  TRY(read_vocab_size(gguf, reader, &config));
  TRY(read_rope(gguf, reader, &config));
  TRY(read_scales(gguf, reader, &config));
  return config;
}

}  // namespace pagoda::weights
