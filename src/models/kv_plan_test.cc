#include "models/kv_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pagoda::models {
namespace {

using kv::KvType;
using kv::LayerFormat;
using testing::ElementsAre;

constexpr LayerFormat kQ8{KvType::kInt8, KvType::kInt8};
constexpr LayerFormat kK16V8{KvType::kBf16, KvType::kInt8};
constexpr LayerFormat kK16V4{KvType::kBf16, KvType::kInt4};

TEST(KvPlan, LayersWithAKBiasKeepKInBf16UnlessNamed) {
  const std::vector<uint8_t> k_bias{1, 0};
  EXPECT_THAT(*layer_formats("auto", k_bias), ElementsAre(kK16V8, kQ8));
  EXPECT_THAT(*layer_formats("k8v4", k_bias), ElementsAre(kK16V4, LayerFormat{KvType::kInt8, KvType::kInt4}));
  EXPECT_THAT(*layer_formats("q4", k_bias), ElementsAre(kK16V4, LayerFormat{KvType::kInt4, KvType::kInt4}));
  EXPECT_THAT(*layer_formats("q8", k_bias), ElementsAre(kQ8, kQ8));
  EXPECT_THAT(*layer_formats("k16v8", k_bias), ElementsAre(kK16V8, kK16V8));
  EXPECT_THAT(*layer_formats("k16v4", k_bias), ElementsAre(kK16V4, kK16V4));
}

TEST(KvPlan, AnotherNameSaysWhichThereAre) {
  const auto formats = layer_formats("q3", std::vector<uint8_t>{0});
  ASSERT_FALSE(formats);
  EXPECT_THAT(formats.error().message, testing::HasSubstr("auto, bf16, k16v8, q8, k16v4, k8v4, q4"));
}

TEST(KvPlan, DescribesRunsOfLayers) {
  weights::ModelConfig config;
  config.n_layers = 4;
  config.n_kv_heads = 1;
  config.head_dim = 32;
  EXPECT_EQ(describe_formats(group_layers(config, std::vector<LayerFormat>(4, kQ8))), "q8");
  config.sliding_window = 64;
  config.local_layers = {1, 0, 1, 0};
  const std::vector<LayerFormat> formats{kK16V8, kQ8, kQ8, kK16V8};
  EXPECT_EQ(describe_formats(group_layers(config, formats)),
            "k16v8 in layers 0-0, q8 in layers 1-2, k16v8 in layers 3-3");
}

}  // namespace
}  // namespace pagoda::models
