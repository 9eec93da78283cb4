#include "weights/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "weights/gguf_test_util.h"
#include "weights/model_report.h"
#include "weights/tokenizer_metadata.h"

namespace pagoda::weights {
namespace {

using tensor::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The shape of a small model; a test changes the numbers it is about.
struct Shape {
  std::string architecture = "llama";
  uint32_t n_layers = 2, embed_dim = 64, n_heads = 4, n_kv_heads = 2, ffn_dim = 96, context = 512;
};

GgufWriter model(const Shape& shape = {}) {
  GgufWriter writer;
  const std::string prefix = shape.architecture + ".";
  writer.set("general.architecture", shape.architecture)
      .set("general.name", "tiny\nmodel")
      .set(prefix + "block_count", shape.n_layers)
      .set(prefix + "context_length", shape.context)
      .set(prefix + "embedding_length", shape.embed_dim)
      .set(prefix + "feed_forward_length", shape.ffn_dim)
      .set(prefix + "attention.head_count", shape.n_heads)
      .set(prefix + "attention.head_count_kv", shape.n_kv_heads)
      .set(prefix + "attention.layer_norm_rms_epsilon", 1e-5F)
      .set_array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "c", "d"});
  return writer;
}

Result<ModelConfig> config_of(const GgufWriter& writer) {
  const std::string file = writer.finish();
  TRY_ASSIGN(const Gguf gguf, Gguf::from_bytes(as_bytes(file), "f.gguf"));
  return read_model_config(gguf);
}

std::string refusal(const GgufWriter& writer, ErrorCode code) {
  const auto config = config_of(writer);
  if (config) return "no error";
  EXPECT_EQ(config.error().code, code) << config.error().to_string();
  EXPECT_THAT(config.error().where, HasSubstr("f.gguf"));
  return config.error().message;
}

TEST(ModelConfig, LlamaWithDefaults) {
  const auto config = config_of(model());
  ASSERT_TRUE(config) << config.error().to_string();
  EXPECT_EQ(config->architecture, Architecture::kLlama);
  EXPECT_EQ(config->name, "tiny?model");
  EXPECT_EQ(config->n_layers, 2);
  EXPECT_EQ(config->n_heads, 4);
  EXPECT_EQ(config->n_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->embed_dim, 64);
  EXPECT_EQ(config->ffn_dim, 96);
  EXPECT_EQ(config->vocab_size, 4);
  EXPECT_EQ(config->context_length, 512);
  EXPECT_FLOAT_EQ(config->rms_eps, 1e-5F);
  EXPECT_FLOAT_EQ(config->attention_scale, 0.25F);
  EXPECT_EQ(config->embedding_scale, 1.0F);
  EXPECT_EQ(config->rope.style, RopeStyle::kAdjacentPairs);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config->rope.dim, 16);
  EXPECT_EQ(config->rope.freq_base, 10000.0);
  EXPECT_EQ(config->sliding_window, 0);
  EXPECT_FALSE(config->is_local(0));
}

TEST(ModelConfig, HeadsMayBeMissingPerLayerOrEqual) {
  GgufWriter mha;
  mha.set("general.architecture", "qwen2")
      .set("qwen2.block_count", 2U)
      .set("qwen2.context_length", 64U)
      .set("qwen2.embedding_length", 64U)
      .set_array("qwen2.feed_forward_length", std::vector<int32_t>{96, 96})
      .set_array("qwen2.attention.head_count", std::vector<int32_t>{2, 2})
      .set("qwen2.attention.layer_norm_rms_epsilon", 1e-6F)
      .set("qwen2.vocab_size", 7U);
  const auto config = config_of(mha);
  ASSERT_TRUE(config) << config.error().to_string();
  EXPECT_EQ(config->n_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->vocab_size, 7);
  EXPECT_EQ(config->rope.style, RopeStyle::kHalves);

  GgufWriter uneven;
  uneven.set("general.architecture", "llama")
      .set("llama.block_count", 2U)
      .set("llama.context_length", 64U)
      .set("llama.embedding_length", 64U)
      .set_array("llama.feed_forward_length", std::vector<int32_t>{96, 128});
  EXPECT_THAT(refusal(uneven, ErrorCode::kUnsupported), HasSubstr("layers of different sizes"));
}

TEST(ModelConfig, Gemma3WindowsScalesAndBases) {
  const Shape shape{.architecture = "gemma3", .n_layers = 8, .n_kv_heads = 1};
  GgufWriter writer = model(shape);
  writer.set("gemma3.attention.key_length", 32U)
      .set("gemma3.attention.value_length", 32U)
      .set("gemma3.attention.sliding_window", 128U)
      .set("gemma3.rope.freq_base", 1e6F)
      .set("gemma3.rope.scaling.type", "linear")
      .set("gemma3.rope.scaling.factor", 8.0F)
      .set("gemma3.final_logit_softcapping", 30.0F);
  const auto config = config_of(writer);
  ASSERT_TRUE(config) << config.error().to_string();
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_THAT(config->local_layers, ElementsAre(1, 1, 1, 1, 1, 0, 1, 1));
  EXPECT_EQ(config->n_local_layers(), 7);
  EXPECT_EQ(config->sliding_window, 128);
  EXPECT_EQ(config->rope.freq_base, 1e6);
  EXPECT_EQ(config->rope.local_freq_base, 1e4);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config->rope.factor, 8.0);
  EXPECT_EQ(config->embedding_scale, 8.0F);
  EXPECT_EQ(config->final_logit_softcap, 30.0F);
  EXPECT_FLOAT_EQ(config->attention_scale, 1.0F / std::sqrt(32.0F));

  const auto two = config_of(GgufWriter(writer).set("gemma3.attention.sliding_window_pattern", 2U));
  EXPECT_THAT(two->local_layers, ElementsAre(1, 0, 1, 0, 1, 0, 1, 0));
  const std::vector<uint8_t> flags{0, 1, 1, 0, 0, 0, 0, 1};
  const auto listed = config_of(GgufWriter(writer).set_array("gemma3.attention.sliding_window_pattern", flags));
  EXPECT_EQ(listed->local_layers, flags);
  const auto bare = config_of(model(shape));
  EXPECT_TRUE(bare->local_layers.empty());
}

TEST(ModelConfig, Gemma3Of62LayersScalesByEmbedding) {
  GgufWriter writer = model({.architecture = "gemma3", .n_layers = 62});
  writer.set("gemma3.attention.key_length", 32U).set("gemma3.attention.value_length", 32U);
  EXPECT_FLOAT_EQ(config_of(writer)->attention_scale, 0.25F);  // 1/sqrt(64 / 4)
}

TEST(ModelConfig, RopeScalings) {
  const auto none = config_of(model().set("llama.rope.scaling.type", "none").set("llama.rope.scaling.factor", 4.0F));
  EXPECT_EQ(none->rope.factor, 1.0);
  const auto old_key = config_of(model().set("llama.rope.scale_linear", 4.0F));
  EXPECT_EQ(old_key->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(old_key->rope.factor, 4.0);

  const auto yarn = config_of(model()
                                  .set("llama.rope.scaling.type", "yarn")
                                  .set("llama.rope.scaling.factor", 4.0F)
                                  .set("llama.rope.scaling.original_context_length", 128U)
                                  .set("llama.rope.scaling.yarn_beta_fast", 16.0F));
  ASSERT_TRUE(yarn) << yarn.error().to_string();
  EXPECT_EQ(yarn->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn->rope.original_context, 128);
  EXPECT_EQ(yarn->rope.beta_fast, 16.0);
  EXPECT_EQ(yarn->rope.beta_slow, 1.0);
  EXPECT_DOUBLE_EQ(yarn->rope.magnitude, 1 + 0.1 * std::log(4.0));

  const std::vector<float> factors{1, 1, 1, 2, 4, 8, 8, 8};
  const std::string bytes(reinterpret_cast<const char*>(factors.data()), 32);
  const auto llama3 = config_of(model().tensor("rope_freqs.weight", 0, {8}, bytes));
  ASSERT_TRUE(llama3) << llama3.error().to_string();
  EXPECT_EQ(llama3->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama3->rope.freq_factors, factors);

  EXPECT_THAT(refusal(model().set("llama.rope.scaling.type", "longrope"), ErrorCode::kUnsupported), HasSubstr("yarn"));
  EXPECT_THAT(refusal(model().tensor("rope_freqs.weight", 0, {4}, bytes), ErrorCode::kBadFile), HasSubstr("F32 [8]"));
  EXPECT_THAT(refusal(model().tensor("rope_freqs.weight", 0, {8}, std::string(32, '\0')), ErrorCode::kBadFile),
              HasSubstr("outside"));
  EXPECT_THAT(refusal(model().set("llama.rope.dimension_count", 8U), ErrorCode::kBadFile), HasSubstr("heads of 16"));
  EXPECT_THAT(
      refusal(model().set("llama.rope.freq_base", std::numeric_limits<float>::quiet_NaN()), ErrorCode::kBadFile),
      HasSubstr("rope.freq_base is nan"));
}

TEST(ModelConfig, UnsupportedModelsSayWhatIsSupported) {
  EXPECT_EQ(refusal(model({.architecture = "mamba"}), ErrorCode::kUnsupported),
            "architecture \"mamba\" is not supported (llama, qwen2, qwen3 and gemma3 are)");
  EXPECT_THAT(refusal(model().set("llama.expert_count", 8U), ErrorCode::kUnsupported), HasSubstr("experts"));
  EXPECT_THAT(refusal(model().set("llama.attention.causal", false), ErrorCode::kUnsupported),
              HasSubstr("bidirectional"));
  EXPECT_THAT(refusal(model().set("llama.attention.value_length", 32U), ErrorCode::kUnsupported), HasSubstr("values"));
  EXPECT_THAT(refusal(model({.embed_dim = 96}), ErrorCode::kUnsupported), HasSubstr("multiple of 16"));
  EXPECT_THAT(refusal(model({.ffn_dim = 100}), ErrorCode::kUnsupported), HasSubstr("multiple of 32"));
}

TEST(ModelConfig, BadNumbersNameTheirKey) {
  EXPECT_THAT(refusal(GgufWriter(), ErrorCode::kBadFile), HasSubstr("general.architecture is missing"));
  EXPECT_THAT(refusal(GgufWriter().set("general.architecture", "llama"), ErrorCode::kBadFile),
              HasSubstr("llama.block_count is missing"));
  EXPECT_THAT(refusal(model({.n_layers = 0}), ErrorCode::kBadFile), HasSubstr("llama.block_count is 0, not 1 to 1024"));
  EXPECT_THAT(refusal(model({.n_layers = 1U << 31}), ErrorCode::kBadFile), HasSubstr("block_count"));
  EXPECT_THAT(refusal(model({.n_heads = 0}), ErrorCode::kBadFile), HasSubstr("attention.head_count is 0"));
  EXPECT_THAT(refusal(model({.n_heads = 4, .n_kv_heads = 3}), ErrorCode::kBadFile), HasSubstr("does not divide the 4"));
  EXPECT_THAT(refusal(model({.n_heads = 3, .n_kv_heads = 3}), ErrorCode::kBadFile), HasSubstr("does not divide"));
  EXPECT_THAT(refusal(model({.context = 0}), ErrorCode::kBadFile), HasSubstr("context_length"));
  EXPECT_THAT(refusal(model().zeros("token_embd.weight", DType::kF32, {5, 64}), ErrorCode::kBadFile),
              HasSubstr("5 rows for a vocabulary of 4"));
}

// The tokenizer's part.

GgufWriter vocabulary() {
  GgufWriter writer;
  writer.set("general.architecture", "llama")
      .set("tokenizer.ggml.model", "gpt2")
      .set("tokenizer.ggml.pre", "smollm")
      .set_array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab"})
      .set_array("tokenizer.ggml.token_type", std::vector<int32_t>{3, 1, 1})
      .set_array("tokenizer.ggml.merges", std::vector<std::string>{"a b"})
      .set("tokenizer.ggml.bos_token_id", 2U)
      .set("tokenizer.ggml.unknown_token_id", 0xFFFFFFFFU)
      .set("tokenizer.ggml.add_bos_token", true)
      .set("tokenizer.chat_template", "{{ messages }}");
  return writer;
}

std::string tokenizer_refusal(const GgufWriter& writer) {
  const std::string file = writer.finish();
  const Gguf gguf = *Gguf::from_bytes(as_bytes(file), "f.gguf");
  const auto metadata = read_tokenizer_metadata(gguf);
  return metadata ? "no error" : metadata.error().message;
}

TEST(TokenizerMetadata, VocabularyOnlyFileIsEnough) {
  const std::string file = vocabulary().finish();
  const Gguf gguf = *Gguf::from_bytes(as_bytes(file), "f.gguf");
  const auto metadata = read_tokenizer_metadata(gguf);
  ASSERT_TRUE(metadata) << metadata.error().to_string();
  EXPECT_EQ(metadata->model, "gpt2");
  EXPECT_EQ(metadata->pre, "smollm");
  EXPECT_THAT(metadata->tokens, ElementsAre("a", "b", "ab"));
  EXPECT_TRUE(metadata->scores.empty());
  EXPECT_THAT(metadata->types, ElementsAre(3, 1, 1));
  EXPECT_THAT(metadata->merges, ElementsAre("a b"));
  EXPECT_EQ(metadata->bos, TokenId(2));
  EXPECT_EQ(metadata->eos, std::nullopt);
  EXPECT_EQ(metadata->unk, std::nullopt);  // -1 in 32 bits
  EXPECT_EQ(metadata->add_bos, true);
  EXPECT_EQ(metadata->add_eos, std::nullopt);
  EXPECT_EQ(metadata->chat_template, "{{ messages }}");
}

TEST(TokenizerMetadata, InconsistentPartsAreRefused) {
  EXPECT_THAT(tokenizer_refusal(GgufWriter()), HasSubstr("no vocabulary"));
  EXPECT_THAT(tokenizer_refusal(vocabulary().set_array("tokenizer.ggml.scores", std::vector<float>{1})),
              HasSubstr("scores has 1 entries for 3 tokens"));
  EXPECT_THAT(tokenizer_refusal(vocabulary().set("tokenizer.ggml.eos_token_id", 3U)),
              HasSubstr("eos_token_id is 3, but there are 3 tokens"));
  GgufWriter bad_type;
  bad_type.set_array("tokenizer.ggml.tokens", std::vector<std::string>{"a"})
      .set_array("tokenizer.ggml.token_type", std::vector<int32_t>{7});
  EXPECT_THAT(tokenizer_refusal(bad_type), HasSubstr("holds 7"));
}

// The report.

TEST(ModelReport, CountsBytesAndListsWhatIsUnsupported) {
  GgufWriter writer = model();
  writer.zeros("token_embd.weight", DType::kQ8_0, {4, 64})
      .zeros("a", DType::kF32, {64})
      .tensor("odd", 19, {1, 256}, std::string(50, 'x'));
  const std::string file = writer.finish();
  const ModelReport report = describe(*Gguf::from_bytes(as_bytes(file), "f.gguf"));
  EXPECT_EQ(report.architecture, "llama");
  EXPECT_EQ(report.n_tensors, 3);
  EXPECT_EQ(report.parameters, 4 * 64 + 64 + 256);
  EXPECT_EQ(report.types[0].type, "Q8_0");
  EXPECT_EQ(report.types[0].bytes, 8 * 34);
  ASSERT_EQ(report.unsupported.size(), 1U);
  EXPECT_EQ(report.unsupported[0].what, "odd");
  EXPECT_EQ(report.unsupported[0].why, "tensor type IQ1_S is not supported");
  ASSERT_TRUE(report.config);
  EXPECT_EQ(report.tokenizer->n_tokens, 4);
}

TEST(ModelReport, VocabularyOnlyAndForeignFilesAreDescribedToo) {
  const std::string vocab = vocabulary().finish();
  const ModelReport report = describe(*Gguf::from_bytes(as_bytes(vocab), "f.gguf"));
  EXPECT_FALSE(report.config);
  EXPECT_EQ(report.tokenizer->pre, "smollm");
  EXPECT_EQ(report.tokenizer->chat_template_bytes, 14);
  EXPECT_THAT(report.unsupported[0].why, HasSubstr("vocabulary only"));
  const std::string foreign = GgufWriter().set("general.architecture", "bert").zeros("t", DType::kF32, {4}).finish();
  const ModelReport bert = describe(*Gguf::from_bytes(as_bytes(foreign), "f.gguf"));
  EXPECT_EQ(bert.architecture, "bert");
  EXPECT_EQ(bert.unsupported.size(), 2U);
}

}  // namespace
}  // namespace pagoda::weights
