#include "weights/tokenizer_metadata.h"

#include <limits>
#include <utility>

namespace pagoda::weights {
namespace {

constexpr size_t kMaxTokens = 1 << 22;

// Of an optional per-token array: none, or one per token.
Status check_length(const Gguf& gguf, std::string_view key, size_t length, size_t n_tokens) {
  if (length == 0 || length == n_tokens) return {};
  return fail(
      gguf.error_at(ErrorCode::kBadFile, key, fmt::format("{} has {} entries for {} tokens", key, length, n_tokens)));
}

// Writers spell "none" by leaving the key out, or as -1 in 32 bits.
Status read_id(const Gguf& gguf, std::string_view key, size_t n_tokens, std::optional<TokenId>* out) {
  TRY_ASSIGN(const std::optional<int64_t> id, gguf.get_i64(key));
  if (!id || *id == -1 || *id == std::numeric_limits<uint32_t>::max()) return {};
  if (*id < 0 || std::cmp_greater_equal(*id, n_tokens)) {
    return fail(
        gguf.error_at(ErrorCode::kBadFile, key, fmt::format("{} is {}, but there are {} tokens", key, *id, n_tokens)));
  }
  *out = TokenId(static_cast<int32_t>(*id));
  return {};
}

Status read_ids(const Gguf& gguf, TokenizerMetadata* out) {
  const size_t n = out->tokens.size();
  TRY(read_id(gguf, "tokenizer.ggml.bos_token_id", n, &out->bos));
  TRY(read_id(gguf, "tokenizer.ggml.eos_token_id", n, &out->eos));
  TRY(read_id(gguf, "tokenizer.ggml.eot_token_id", n, &out->eot));
  TRY(read_id(gguf, "tokenizer.ggml.eom_token_id", n, &out->eom));
  TRY(read_id(gguf, "tokenizer.ggml.unknown_token_id", n, &out->unk));
  TRY(read_id(gguf, "tokenizer.ggml.padding_token_id", n, &out->pad));
  return {};
}

Status read_types(const Gguf& gguf, TokenizerMetadata* out) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  TRY_ASSIGN(const std::optional<std::vector<int64_t>> types, gguf.get_array_i64(kKey));
  if (!types) return {};
  TRY(check_length(gguf, kKey, types->size(), out->tokens.size()));
  out->types.reserve(types->size());
  for (const int64_t type : *types) {
    if (type < 0 || type > 6) {
      return fail(gguf.error_at(ErrorCode::kBadFile, kKey, fmt::format("{} holds {}, not 0 to 6", kKey, type)));
    }
    out->types.push_back(static_cast<int32_t>(type));
  }
  return {};
}

}  // namespace

Result<TokenizerMetadata> read_tokenizer_metadata(const Gguf& gguf) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  TokenizerMetadata out;
  const auto text = [&](std::string_view key, std::string_view* view) -> Status {
    TRY_ASSIGN(const std::optional<std::string_view> value, gguf.get_string(key));
    *view = value.value_or(std::string_view());
    return {};
  };
  TRY(text("tokenizer.ggml.model", &out.model));
  TRY(text("tokenizer.ggml.pre", &out.pre));
  TRY(text("general.name", &out.name));
  TRY(text("tokenizer.chat_template", &out.chat_template));
  TRY_ASSIGN(std::optional<std::vector<std::string_view>> tokens, gguf.get_array_string(kTokens));
  if (!tokens || tokens->empty() || tokens->size() > kMaxTokens) {
    return fail(gguf.error_at(ErrorCode::kBadFile, kTokens,
                              tokens
                                  ? fmt::format("the vocabulary has {} tokens, not 1 to {}", tokens->size(), kMaxTokens)
                                  : "the file has no vocabulary (tokenizer.ggml.tokens)"));
  }
  out.tokens = std::move(*tokens);
  TRY_ASSIGN(std::optional<std::vector<float>> scores, gguf.get_array_f32(kScores));
  if (scores) out.scores = std::move(*scores);
  TRY(check_length(gguf, kScores, out.scores.size(), out.tokens.size()));
  TRY(read_types(gguf, &out));
  TRY_ASSIGN(std::optional<std::vector<std::string_view>> merges, gguf.get_array_string("tokenizer.ggml.merges"));
  if (merges) out.merges = std::move(*merges);
  TRY(read_ids(gguf, &out));
  TRY_ASSIGN(out.add_bos, gguf.get_bool("tokenizer.ggml.add_bos_token"));
  TRY_ASSIGN(out.add_eos, gguf.get_bool("tokenizer.ggml.add_eos_token"));
  TRY_ASSIGN(out.add_space_prefix, gguf.get_bool("tokenizer.ggml.add_space_prefix"));
  return out;
}

}  // namespace pagoda::weights
