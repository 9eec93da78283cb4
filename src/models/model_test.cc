// Loading: what a family's file must hold, what it may not hold, and how its layers are grouped. What a model computes is tested
// against numpy (tests/golden) and against itself (engine/equality_test.cc).
#include "models/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "models/kv_plan.h"
#include "weights/gguf_test_util.h"

namespace pagoda::models {
namespace {

using tensor::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weights::GgufWriter;

// A model of two layers, all weights zero; a test leaves tensors out or changes their shape.
struct Spec {
  std::string architecture = "llama";
  uint32_t n_layers = 2;
  std::set<std::string> without{};
  std::set<std::string> halved{};     // their first dimension
  std::set<std::string> with_bias{};  // of blk.0
  std::string extra{};                // one tensor more
};

std::string file_of(const Spec& spec) {
  GgufWriter writer;
  const std::string prefix = spec.architecture + ".";
  writer.set("general.architecture", spec.architecture)
      .set(prefix + "block_count", spec.n_layers)
      .set(prefix + "context_length", uint32_t{512})
      .set(prefix + "embedding_length", uint32_t{64})
      .set(prefix + "feed_forward_length", uint32_t{96})
      .set(prefix + "attention.head_count", uint32_t{4})
      .set(prefix + "attention.head_count_kv", uint32_t{2})
      .set(prefix + "attention.layer_norm_rms_epsilon", 1e-5F)
      .set_array("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "c", "d"});
  if (spec.architecture == "gemma3") writer.set(prefix + "attention.sliding_window", uint32_t{32});
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    if (spec.without.contains(name)) return;
    if (spec.halved.contains(name)) shape[0] /= 2;
    writer.zeros(name, DType::kF32, shape);
  };
  add("token_embd.weight", {4, 64});
  add("output_norm.weight", {64});
  for (uint32_t layer = 0; layer < spec.n_layers; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    for (const char* name : {"attn_norm", "ffn_norm"}) add(blk + name + ".weight", {64});
    add(blk + "attn_q.weight", {64, 64});
    add(blk + "attn_k.weight", {32, 64});
    add(blk + "attn_v.weight", {32, 64});
    add(blk + "attn_output.weight", {64, 64});
    add(blk + "ffn_gate.weight", {96, 64});
    add(blk + "ffn_up.weight", {96, 64});
    add(blk + "ffn_down.weight", {64, 96});
    if (spec.architecture == "gemma3") {
      for (const char* name : {"post_attention_norm", "post_ffw_norm"}) add(blk + name + ".weight", {64});
      for (const char* name : {"attn_q_norm", "attn_k_norm"}) add(blk + name + ".weight", {16});
    }
  }
  for (const std::string& name : spec.with_bias) add("blk.0." + name + ".bias", {name == "attn_q" ? 64U : 32U});
  if (!spec.extra.empty()) add(spec.extra, {64});
  return writer.finish();
}

struct Loaded {
  std::unique_ptr<Model> model;
  std::string error;
};
Loaded load(const Spec& spec, std::string_view kv_format = "auto") {
  const std::string file = file_of(spec);
  const auto gguf = weights::Gguf::from_bytes(weights::as_bytes(file), "f.gguf");
  if (!gguf) return {nullptr, gguf.error().to_string()};
  ThreadPool pool(2);
  auto model = load_model(*gguf, kv_format, pool);
  if (!model) return {nullptr, model.error().to_string()};
  return {std::move(*model), ""};
}

TEST(ModelTest, LoadsWhatTheFamilyNeeds) {
  const Loaded loaded = load({});
  ASSERT_NE(loaded.model, nullptr) << loaded.error;
  EXPECT_EQ(loaded.model->config().n_layers, 2);
  EXPECT_GE(loaded.model->weight_bytes(), 2 * (64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3) * sizeof(float));
  ASSERT_EQ(loaded.model->groups().size(), 1u);
  EXPECT_THAT(loaded.model->groups()[0].layers, ElementsAre(0, 1));
}

TEST(ModelTest, MissingMisshapenAndUnknownTensorsAreNamed) {
  EXPECT_THAT(load({.without = {"blk.1.ffn_up.weight"}}).error, HasSubstr("blk.1.ffn_up.weight is missing"));
  EXPECT_THAT(load({.without = {"output_norm.weight"}}).error, HasSubstr("output_norm.weight is missing"));
  EXPECT_THAT(load({.halved = {"blk.0.attn_k.weight"}}).error,
              HasSubstr("blk.0.attn_k.weight has shape [16, 64], expected [32, 64]"));
  EXPECT_THAT(load({.extra = "blk.0.attn_sinks.weight"}).error, HasSubstr("blk.0.attn_sinks.weight"));
}

TEST(ModelTest, Qwen2NeedsItsBiases) {
  EXPECT_THAT(load({.architecture = "qwen2", .n_layers = 1}).error, HasSubstr("blk.0.attn_q.bias is missing"));
  const Loaded loaded = load({.architecture = "qwen2", .n_layers = 1, .with_bias = {"attn_q", "attn_k", "attn_v"}});
  EXPECT_NE(loaded.model, nullptr) << loaded.error;
}

TEST(ModelTest, LayersWithAKeyBiasKeepKInBf16) {
  const Spec spec{.architecture = "qwen2", .n_layers = 1, .with_bias = {"attn_q", "attn_k", "attn_v"}};
  const auto bytes = [&](std::string_view format) {
    const Loaded loaded = load(spec, format);
    return loaded.model ? loaded.model->groups()[0].layout.bytes_per_token() : 0;
  };
  EXPECT_EQ(bytes("q8"), 2u * (18 + 18));  // heads of 16 and an f16 scale, K and V
  EXPECT_EQ(bytes("auto"), 2u * (32 + 18));
  EXPECT_EQ(bytes("bf16"), 2u * (32 + 32));
  EXPECT_EQ(bytes("k8v16"), 2u * (18 + 32));
  EXPECT_EQ(bytes("q4"), bytes("k16v4"));
  EXPECT_THAT(load(spec, "q3").error, HasSubstr("k8v4, q4"));
}

TEST(ModelTest, WindowLayersHaveAGroupOfTheirOwn) {
  const Loaded loaded = load({.architecture = "gemma3", .n_layers = 7});
  ASSERT_NE(loaded.model, nullptr) << loaded.error;
  ASSERT_EQ(loaded.model->groups().size(), 2u);
  EXPECT_EQ(loaded.model->groups()[0].window, 0);
  EXPECT_THAT(loaded.model->groups()[0].layers, ElementsAre(5));
  EXPECT_EQ(loaded.model->groups()[1].window, 32);
  EXPECT_THAT(loaded.model->groups()[1].layers, ElementsAre(0, 1, 2, 3, 4, 6));
}

TEST(ModelTest, UnknownFamiliesListTheKnown) {
  const std::string error = load({.architecture = "mamba"}).error;
  for (const char* family : {"mamba", "llama", "qwen2", "qwen3", "gemma3"}) EXPECT_THAT(error, HasSubstr(family));
}

}  // namespace
}  // namespace pagoda::models
