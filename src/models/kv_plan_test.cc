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
  EXPECT_THAT(formats.error().message, testing::HasSubstr("auto, bf16, k16v8, k8v16, q8, k16v4, k8v4, q4"));
}

TEST(KvPlan, TablesNameEveryLayersFormat) {
  const std::vector<uint8_t> k_bias(4);
  const auto table = [&](std::string_view text) { return layer_formats(text, k_bias); };
  const std::vector mixed{kK16V8, kQ8, kQ8, kK16V8};
  EXPECT_EQ(table("k16v8,q8*2,k16v8"), mixed);
  EXPECT_EQ(table("k16v8,q8,q8,k16v8"), mixed);
  EXPECT_EQ(format_table(mixed), "k16v8,q8*2,k16v8");
  EXPECT_EQ(table("q8*4"), std::vector(4, kQ8));
  EXPECT_EQ(format_table(std::vector(4, kQ8)), "q8");
  EXPECT_EQ(table("q8"), std::vector(4, kQ8));
  for (const char* wrong : {"q8*3", "q8*5", "q8,", ",q8*4", "q8*0,q8*4", "q8*-1,q8*5", "q8*4x", "auto*4", "q8*,q8*3",
                            "q8*99999999999999999999"})
    EXPECT_FALSE(table(wrong)) << wrong;
  EXPECT_THAT(table("q8*3").error().message, testing::HasSubstr("3 layers; the model has 4"));
}

TEST(KvPlan, TablesOfGroupsAreByLayer) {
  weights::ModelConfig config;
  config.n_layers = 4;
  config.n_kv_heads = 1;
  config.head_dim = 32;
  config.sliding_window = 64;
  config.local_layers = {1, 0, 1, 0};
  const std::vector<LayerFormat> formats{kK16V8, kQ8, kQ8, kK16V8};
  EXPECT_EQ(format_table(group_layers(config, formats)), "k16v8,q8*2,k16v8");
}

// With a K bias the flags k8v4 and q4 give k16v4, and auto gives what is left of q8: what a token takes is of that.
TEST(KvPlan, FootprintsAreOfWhatIsStored) {
  weights::ModelConfig config;
  config.n_layers = 4;
  config.n_kv_heads = 2;
  config.head_dim = 64;
  const auto told = [&](std::string_view format, uint8_t k_bias) {
    return footprint(format, group_layers(config, *layer_formats(format, std::vector<uint8_t>(4, k_bias))));
  };
  EXPECT_EQ(told("k8v4", 0).bytes_per_token, 4u * 2 * (66 + 34));
  EXPECT_EQ(told("k8v4", 0).note, "");
  EXPECT_EQ(told("q4", 0).bytes_per_token, 4u * 2 * (34 + 34));
  for (const char* format : {"k8v4", "q4"}) {
    EXPECT_EQ(told(format, 1).bytes_per_token, 4u * 2 * (128 + 34)) << format;
    EXPECT_EQ(told(format, 1).note, "as k16v4") << format;
  }
  EXPECT_EQ(told("auto", 1).bytes_per_token, told("k16v8", 1).bytes_per_token);
  EXPECT_EQ(told("auto", 1).note, "k16v8");
  config.sliding_window = 64;
  config.local_layers = {1, 1, 1, 0};
  EXPECT_EQ(told("q8", 0).bytes_per_token, 1u * 2 * (66 + 66));
  EXPECT_EQ(told("q8", 0).window_bytes_per_token, 3u * 2 * (66 + 66));
}

// A name that spares biased layers is no name for a table that does not.
TEST(KvPlan, TablesReadAsTheyWereWritten) {
  const std::vector<LayerFormat> q4(2, LayerFormat{KvType::kInt4, KvType::kInt4});
  EXPECT_EQ(format_table(q4), "q4*2");
  EXPECT_EQ(layer_formats(format_table(q4), std::vector<uint8_t>{1, 0}), q4);
}

}  // namespace
}  // namespace pagoda::models
