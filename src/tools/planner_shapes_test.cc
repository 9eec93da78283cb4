#include "tools/planner_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace pagoda::tools {
namespace {

int64_t parameters(const std::vector<WeightTensor>& tensors) {
  int64_t n = 0;
  for (const WeightTensor& tensor : tensors) n += tensor.n_elements();
  return n;
}

TEST(PlannerShapes, HaveThePublishedParameters) {
  for (const PublicShape& shape : public_shapes())
    EXPECT_EQ(parameters(tensors_of(shape, tensor::DType::kF16)), shape.published_parameters) << shape.slug;
}

// What their makers publish has the image tower too; it is the same in all three.
TEST(PlannerShapes, LargeGemmasLackTheImageTower) {
  for (const auto& [slug, published] :
       {std::pair{"gemma-3-4b", int64_t{4'300'079'472}}, std::pair{"gemma-3-12b", int64_t{12'187'325'040}},
        std::pair{"gemma-3-27b", int64_t{27'432'406'640}}}) {
    const PublicShape& shape = *find_shape(slug);
    EXPECT_EQ(published - shape.published_parameters, 416'866'032 + 1152 * (int64_t{shape.embed_dim} + 1)) << slug;
  }
}

TEST(PlannerShapes, AreWhatTheEngineCouldRun) {
  std::set<std::string_view> slugs;
  for (const PublicShape& shape : public_shapes()) {
    EXPECT_TRUE(slugs.insert(shape.slug).second) << shape.slug;
    EXPECT_EQ(shape.n_heads % shape.n_kv_heads, 0) << shape.slug;
    EXPECT_EQ(shape.head_dim % 16, 0) << shape.slug;
    EXPECT_EQ(shape.embed_dim % 32, 0) << shape.slug;
    EXPECT_EQ(find_shape(shape.slug), &shape);
  }
  EXPECT_EQ(find_shape("Llama-2-7B"), find_shape("llama-2-7b"));
  EXPECT_EQ(find_shape("llama-2-8b"), nullptr);
}

TEST(PlannerShapes, WindowsLieWhereTheModelsHaveThem) {
  const weights::ModelConfig gemma = config_of(*find_shape("gemma-3-270m"));
  EXPECT_EQ(gemma.n_local_layers(), 15);
  EXPECT_TRUE(gemma.is_local(4));
  EXPECT_FALSE(gemma.is_local(5));
  EXPECT_EQ(config_of(*find_shape("mistral-7b-v0.1")).n_local_layers(), 32);
  EXPECT_EQ(config_of(*find_shape("mistral-7b")).n_local_layers(), 0);
}

TEST(PlannerShapes, NearNamesComeFirst) {
  EXPECT_EQ(near_shapes("llama-2-7").front(), "llama-2-7b");
  EXPECT_EQ(near_shapes("Qwen2.5-7b").front(), "qwen2.5-7b");
  EXPECT_EQ(near_shapes("gemma-3-1").front(), "gemma-3-1b");
  EXPECT_EQ(near_shapes("").size(), 5u);
  EXPECT_EQ(near_shapes(std::string(1000, 'x')).size(), 5u);
}

TEST(PlannerShapes, RowsThatATypeCannotHoldTakeItsStandIn) {
  const auto types_of = [](std::string_view slug, tensor::DType type) {
    std::set<tensor::DType> types;
    for (const WeightTensor& tensor : tensors_of(*find_shape(slug), type)) {
      if (tensor.n_dims > 1) types.insert(tensor.dtype);
    }
    return types;
  };
  using tensor::DType;
  EXPECT_THAT(types_of("llama-2-7b", DType::kQ4_K), testing::ElementsAre(DType::kQ4_K));
  EXPECT_THAT(types_of("smollm2-135m", DType::kQ4_K), testing::ElementsAre(DType::kQ5_0, DType::kQ4_K));  // 576, 1536
  EXPECT_THAT(types_of("smollm2-135m", DType::kQ8_0), testing::ElementsAre(DType::kQ8_0));
  EXPECT_THAT(types_of("qwen2.5-0.5b", DType::kQ6_K), testing::ElementsAre(DType::kQ8_0, DType::kQ6_K));
}

}  // namespace
}  // namespace pagoda::tools
