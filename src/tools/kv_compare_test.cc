#include "tools/kv_compare.h"

#include <gmock/gmock.h>

#include <cmath>

#include "engine/evaluate.h"
#include "engine/test_models.h"
#include "tools/kv_probing.h"

namespace pagoda::tools {
namespace {

using testing::HasSubstr;

void nobody(double, std::string_view) {}

engine::EngineConfig config_of(const char* model, kernels::Arithmetic arithmetic) {
  engine::EngineConfig config = engine::tiny_config(engine::tiny_model(model));
  config.arithmetic = arithmetic;
  config.context_tokens = 300;
  config.step_tokens = 64;
  return config;
}

KvComparer comparer_of(const engine::EngineConfig& config) {
  auto comparer = KvComparer::load(config);
  EXPECT_TRUE(comparer) << comparer.error().to_string();
  return std::move(*comparer);
}

struct Tiny {
  const char* model;
  kernels::Arithmetic arithmetic;
};
class KvLockStep : public testing::TestWithParam<Tiny> {};

// What each format gives beside the others is what it gives alone, and what an engine of that format gives.
TEST_P(KvLockStep, IsAsSeparateRuns) {
  const engine::EngineConfig config = config_of(GetParam().model, GetParam().arithmetic);
  KvComparer comparer = comparer_of(config);
  const std::vector<std::vector<TokenId>> windows{engine::random_tokens(1, 300), engine::random_tokens(2, 300)};
  const std::vector<KvVariant> variants{comparer.variant("q8"), comparer.variant("k8v16"), comparer.variant("bf16")};
  const auto together = comparer.compare(variants, windows, nobody);
  ASSERT_TRUE(together) << together.error().to_string();
  ASSERT_EQ(together->size(), 4u);
  for (size_t i = 0; i < variants.size(); ++i) {
    const KvQuality& q = (*together)[i + 1];
    const auto alone = comparer.compare(std::span(variants).subspan(i, 1), windows, nobody);
    ASSERT_TRUE(alone);
    EXPECT_EQ((*alone)[1].distance, q.distance) << q.format;
    EXPECT_EQ((*alone)[1].ppl, q.ppl);
    EXPECT_EQ(q.n_rows, 598);

    engine::EngineConfig own = config;
    own.kv_format = variants[i].format;
    const SteadyClock clock;
    const auto runner = engine::StepRunner::create(own, clock);
    ASSERT_TRUE(runner);
    EXPECT_EQ((*runner)->kv_bytes_per_token(), q.bytes_per_token);
    double nll = 0;
    for (const auto& window : windows) nll += engine::evaluate(**runner, window, engine::KvReuse::kOn, 0)->nll / 2;
    EXPECT_NEAR(q.ppl, std::exp(nll), 1e-9 * q.ppl) << q.format;
  }
  EXPECT_GT((*together)[1].distance.mean_kl, 0);
  EXPECT_EQ((*together)[3].distance, engine::KvDistance());  // bf16 against itself
  EXPECT_LT((*together)[1].bytes_per_token, (*together)[2].bytes_per_token);
}
INSTANTIATE_TEST_SUITE_P(Tiny, KvLockStep,
                         testing::Values(Tiny{"tiny-llama", kernels::Arithmetic::kInt8},
                                         Tiny{"tiny-gemma3", kernels::Arithmetic::kF32},
                                         Tiny{"tiny-qwen2", kernels::Arithmetic::kInt8}),
                         [](const auto& tested) { return std::string(tested.param.model + 5); });

TEST(KvCompareTest, NoiseMovesAndChunksDoNot) {
  KvComparer comparer = comparer_of(config_of("tiny-llama", kernels::Arithmetic::kInt8));
  const std::vector<std::vector<TokenId>> windows{engine::random_tokens(3, 200)};
  const KvVariant noise = comparer.noise();
  const auto measured = comparer.compare(std::span(&noise, 1), windows, nobody);
  ASSERT_TRUE(measured);
  EXPECT_GT((*measured)[1].distance.mean_kl, 0);
  const auto changed = comparer.chunks_change_bits(windows[0]);
  ASSERT_TRUE(changed);
  EXPECT_FALSE(*changed);
}

TEST(KvCompareTest, DecodeRatesOfEveryFormat) {
  KvComparer comparer = comparer_of(config_of("tiny-gemma3", kernels::Arithmetic::kInt8));
  const std::vector<KvVariant> variants{comparer.variant("q8")};
  const auto rates = comparer.decode_rates(variants, engine::random_tokens(4, 120), nobody);
  ASSERT_TRUE(rates) << rates.error().to_string();
  ASSERT_EQ(rates->size(), 2u);
  EXPECT_GT(rates->at(0), 0);
  EXPECT_GT(rates->at(1), 0);
}

TEST(KvCompareTest, WhatCannotBeComparedIsSaid) {
  KvComparer comparer = comparer_of(config_of("tiny-llama", kernels::Arithmetic::kInt8));
  EXPECT_THAT(comparer.check("q3").error().message, HasSubstr("unknown KV format \"q3\""));
  const std::vector<KvVariant> unknown{comparer.variant("q3")};
  EXPECT_FALSE(comparer.compare(unknown, {}, nobody));
  const std::vector<std::vector<TokenId>> outside{{TokenId(1), TokenId(1 << 20)}};
  const auto result = comparer.compare({}, outside, nobody);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("token id 1048576 is not in the vocabulary"));
}

TEST(KvCompareTest, WindowsBeginWithTheirBos) {
  const std::vector<TokenId> text = engine::random_tokens(5, 10);
  const auto windows = windows_of(text, TokenId(1), 5);
  ASSERT_TRUE(windows);
  ASSERT_EQ(windows->size(), 2u);  // of 4 tokens each, and 2 are left out
  EXPECT_EQ((*windows)[1], (std::vector{TokenId(1), text[4], text[5], text[6], text[7]}));
  EXPECT_EQ(windows_of(text, std::nullopt, 5)->size(), 2u);
  EXPECT_FALSE(windows_of(text, TokenId(1), 1));
  EXPECT_THAT(windows_of(text, std::nullopt, 11).error().message, HasSubstr("10 tokens, and a window takes 11"));
}

TEST(KvProbingTest, TablesKeepTheDearestInBf16) {
  const std::vector<LayerCost> costs{
      {2, LayerCost::Part::kK, 3}, {0, LayerCost::Part::kV, 2}, {2, LayerCost::Part::kV, 1}};
  EXPECT_EQ(table_without(costs, 0, 4), "q8");
  EXPECT_EQ(table_without(costs, 1, 4), "q8*2,k16v8,q8");
  EXPECT_EQ(table_without(costs, 2, 4), "k8v16,q8,k16v8,q8");
  EXPECT_EQ(table_without(costs, 3, 4), "k8v16,q8,bf16,q8");
}

TEST(KvProbingTest, AProbeChoosesATableThatPasses) {
  engine::EngineConfig config = config_of("tiny-qwen2", kernels::Arithmetic::kInt8);
  config.step_tokens = 256;
  double last = 0;
  const auto probe = probe_formats(config, std::nullopt, [&](double done, std::string_view) {
    EXPECT_GE(done, last - 1e-9);
    last = done;
  });
  ASSERT_TRUE(probe) << probe.error().to_string();
  ASSERT_NE(probe->find(probe->table), nullptr) << probe->table;
  EXPECT_TRUE(engine::passes(probe->find(probe->table)->distance));
  EXPECT_NE(probe->find("q8"), nullptr);
  EXPECT_GT(probe->n_tokens, 4000);
}

TEST(KvProbingTest, WhatF32FoundIsConfirmedNotMeasuredAgain) {
  engine::EngineConfig config = config_of("tiny-qwen2", kernels::Arithmetic::kInt8);
  config.step_tokens = 256;
  const engine::KvProbe in_f32{.table = "k16v8", .verdicts = {{"k16v8", {.mean_kl = 0.00012}}}, .n_tokens = 77};
  auto probe = probe_formats(config, in_f32, [](double, std::string_view) {});
  ASSERT_TRUE(probe) << probe.error().to_string();
  EXPECT_GT(probe->unix_s, 0);
  probe->unix_s = 0;
  EXPECT_EQ(*probe, in_f32);
}

}  // namespace
}  // namespace pagoda::tools
