#include "tools/bench_run.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/test_models.h"
#include "tools/bench_requests.h"
#include "tools/model_costs.h"
#include "weights/model_config.h"

namespace pagoda::tools {
namespace {

engine::EngineConfig config_of(const std::string& model) {
  engine::EngineConfig config = engine::tiny_config(engine::tiny_model(model));
  config.context_tokens = 256;
  return config;
}

BenchPlan plan_of(std::string_view works) {
  BenchPlan plan;
  plan.works = *parse_works(works);
  plan.repeats = 2;
  plan.accuracy_tokens = 48;
  return plan;
}

TEST(BenchRun, MeasuresEveryWorkThatFits) {
  double last = -1;
  const auto result = run_bench(config_of("tiny-llama"), plan_of("prefill64,decode100,batch2,decode7k,accuracy"),
                                [&](double done, std::string_view what) {
                                  EXPECT_GE(done, last);
                                  EXPECT_LT(done, 1);
                                  EXPECT_FALSE(what.empty());
                                  last = done;
                                });
  ASSERT_TRUE(result) << result.error().to_string();
  ASSERT_EQ(result->lines.size(), 3U);
  for (const BenchLine& line : result->lines) {
    EXPECT_EQ(line.runs.size(), 2U) << line.work;
    EXPECT_GT(line.median(), 0) << line.work;
    EXPECT_GT(line.limit, 0) << line.work;
    EXPECT_GT(line.gb_per_s, 0) << line.work;
    EXPECT_GT(line.gops, 0) << line.work;
    EXPECT_TRUE(line.runs_agree) << line.work;
    EXPECT_EQ(line.hash.size(), 16U);
  }
  EXPECT_EQ(result->lines[0].hash_of, "logprobs");
  EXPECT_EQ(result->lines[1].hash_of, "tokens");
  ASSERT_EQ(result->left_out.size(), 1U);
  EXPECT_EQ(result->left_out[0].work, "decode7k");
  EXPECT_EQ(result->accuracy_tokens, 48);
  ASSERT_GE(result->accuracy.size(), 2U);
  EXPECT_EQ(result->accuracy[0].arithmetic, "f32");
  EXPECT_EQ(result->accuracy[0].difference, 0);
  // Random weights are more sensitive than trained ones.
  for (const AccuracyLine& line : result->accuracy) EXPECT_LT(std::abs(line.difference), 0.02) << line.arithmetic;
}

TEST(BenchRun, HashesAreEqualOnEveryIsa) {
  std::vector<std::string> hashes;
  for (const kernels::Isa isa : kernels::supported_isas()) {
    engine::EngineConfig config = config_of("tiny-qwen2");
    config.isa = isa;
    const auto result = run_bench(config, plan_of("prefill64,decode"), [](double, std::string_view) {});
    ASSERT_TRUE(result) << result.error().to_string();
    hashes.push_back(result->lines[0].hash + result->lines[1].hash);
  }
  for (const std::string& hash : hashes) EXPECT_EQ(hash, hashes.front());
}

TEST(BenchRun, AMissingModelIsAnError) {
  engine::EngineConfig config;
  config.model_path = "nowhere.gguf";
  EXPECT_FALSE(run_bench(config, plan_of("decode"), [](double, std::string_view) {}));
}

TEST(BenchRequests, PromptsAreFixedAndInRange) {
  const auto prompt = random_prompt(7, 1000, 50);
  EXPECT_EQ(prompt, random_prompt(7, 1000, 50));
  EXPECT_NE(prompt, random_prompt(8, 1000, 50));
  for (const TokenId token : prompt) {
    EXPECT_GE(token.value, 0);
    EXPECT_LT(token.value, 50);
  }
}

TEST(BenchRequests, AFailedRequestIsTheResult) {
  auto engine = engine::Engine::create(config_of("tiny-llama"));
  ASSERT_TRUE(engine);
  engine::Request request;
  request.prompt = engine::TokenPrompt{random_prompt(1, 1000, 50)};
  const auto results = run_requests(**engine, {request});
  ASSERT_FALSE(results);
  EXPECT_EQ(results.error().code, ErrorCode::kContextExceeded);
}

TEST(ModelCosts, CountEveryWeightThatATokenMeets) {
  const auto gguf = weights::Gguf::open(engine::tiny_model("tiny-llama"));
  ASSERT_TRUE(gguf);
  const auto config = weights::read_model_config(*gguf);
  ASSERT_TRUE(config);
  const auto costs = model_costs(*gguf, kernels::Arithmetic::kF32, "bf16");
  ASSERT_TRUE(costs);
  const auto f32 = static_cast<size_t>(kernels::DotKind::kF32);
  const int d = config->head_dim;
  const double layer = static_cast<double>(config->embed_dim) * (2 * config->n_heads + 2 * config->n_kv_heads) * d +
                       3.0 * config->embed_dim * config->ffn_dim;
  EXPECT_EQ(costs->body[f32], config->n_layers * layer);
  EXPECT_EQ(costs->head[f32], static_cast<double>(config->vocab_size) * config->embed_dim);
  EXPECT_EQ(costs->kv_bytes_per_token(), config->n_layers * config->n_kv_heads * 4.0 * d);
  const auto q8 = model_costs(*gguf, kernels::Arithmetic::kInt8, "q8");
  ASSERT_TRUE(q8);
  EXPECT_EQ(q8->kv_bytes_per_token(), config->n_layers * config->n_kv_heads * (2.0 * d + 4));
  EXPECT_EQ(q8->body_bytes, costs->body_bytes);
  for (const ModelCosts::KvLayers& layers : q8->kv) {
    EXPECT_EQ(layers.qk,
              layers.bytes_per_token < costs->kv_bytes_per_token() ? kernels::DotKind::kInt8 : kernels::DotKind::kF32);
    EXPECT_EQ(layers.pv, kernels::DotKind::kInt15);
  }
  EXPECT_FALSE(model_costs(*gguf, kernels::Arithmetic::kInt8, "q3"));
}

TEST(ModelCosts, WhatMultipliesWhat) {
  using kernels::Arithmetic;
  using kernels::DotKind;
  using tensor::DType;
  EXPECT_EQ(dot_kind(DType::kQ4_0, Arithmetic::kInt8), DotKind::kInt4);
  EXPECT_EQ(dot_kind(DType::kQ2_K, Arithmetic::kInt8), DotKind::kInt4);
  EXPECT_EQ(dot_kind(DType::kQ5_K, Arithmetic::kInt8), DotKind::kInt5);
  EXPECT_EQ(dot_kind(DType::kQ6_K, Arithmetic::kInt8), DotKind::kInt6);
  EXPECT_EQ(dot_kind(DType::kQ8_0, Arithmetic::kInt8), DotKind::kInt8);
  EXPECT_EQ(dot_kind(DType::kIQ4_XS, Arithmetic::kInt8), DotKind::kInt8);
  EXPECT_EQ(dot_kind(DType::kF16, Arithmetic::kInt8), DotKind::kF32);
  EXPECT_EQ(dot_kind(DType::kQ4_0, Arithmetic::kF32), DotKind::kF32);
  EXPECT_EQ(dot_kind(DType::kQ4_0, Arithmetic::kBf16), DotKind::kBf16);
}

}  // namespace
}  // namespace pagoda::tools
