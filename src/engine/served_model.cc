#include "engine/served_model.h"

#include "base/clock.h"
#include "weights/tokenizer_metadata.h"

namespace pagoda::engine {
namespace {

text::Vocabulary vocabulary_of(const weights::TokenizerMetadata& metadata, std::string_view name) {
  text::Vocabulary v;
  v.model = metadata.model;
  v.pre = metadata.pre;
  v.name = name;
  v.tokens = metadata.tokens;
  v.scores = metadata.scores;
  v.types = metadata.types;
  v.merges = metadata.merges;
  v.bos = metadata.bos;
  v.eos = metadata.eos;
  v.eot = metadata.eot;
  v.eom = metadata.eom;
  v.unk = metadata.unk;
  v.pad = metadata.pad;
  v.add_bos = metadata.add_bos;
  v.add_eos = metadata.add_eos;
  v.add_space_prefix = metadata.add_space_prefix;
  return v;
}

Result<text::Tokenizer> make_tokenizer(const weights::Gguf& gguf, const weights::TokenizerMetadata& metadata) {
  TRY_ASSIGN(const std::optional<std::string_view> name, gguf.get_string("general.name"));
  return text::Tokenizer::create(vocabulary_of(metadata, name.value_or("")));
}

Result<text::ChatTemplate> compile_template(std::string_view source, const text::Tokenizer& tokenizer,
                                            std::string_view file) {
  if (source.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "{} has no chat template: use /v1/completions, or start with --chat-template", file);
  }
  const auto text_of = [&](std::optional<TokenId> token) {
    return token ? tokenizer.token_text(*token) : std::string_view();
  };
  return text::ChatTemplate::compile(source, text_of(tokenizer.bos()), text_of(tokenizer.eos()));
}

}  // namespace

Result<text::Tokenizer> make_tokenizer(const weights::Gguf& gguf) {
  TRY_ASSIGN(const weights::TokenizerMetadata metadata, weights::read_tokenizer_metadata(gguf));
  return make_tokenizer(gguf, metadata);
}

Result<ServedModel> ServedModel::make(const weights::Gguf& gguf, const EngineConfig& config) {
  TRY_ASSIGN(const weights::TokenizerMetadata metadata, weights::read_tokenizer_metadata(gguf));
  TRY_ASSIGN(text::Tokenizer tokenizer, make_tokenizer(gguf, metadata));
  ModelInfo info;
  info.path = config.model_path.string();
  info.name = config.served_name.empty() ? config.model_path.stem().string() : config.served_name;
  info.file_bytes = gguf.file_bytes();
  for (const weights::TensorInfo& tensor : gguf.tensors()) info.n_params += static_cast<uint64_t>(tensor.n_elements());
  info.vocab_size = static_cast<int>(tokenizer.size());
  info.created = unix_seconds();
  const std::string_view source = config.chat_template.empty() ? metadata.chat_template : config.chat_template;
  Result<text::ChatTemplate> chat_template = compile_template(source, tokenizer, info.name);
  info.has_chat_template = chat_template.has_value();
  std::vector<TokenId> end_tokens;
  for (int32_t id = 0; id < info.vocab_size; ++id) {
    if (tokenizer.is_end_of_generation(TokenId(id))) end_tokens.emplace_back(id);
  }
  return ServedModel{std::move(info), std::move(tokenizer), std::move(end_tokens), std::move(chat_template),
                     config.context_policy};
}

}  // namespace pagoda::engine
