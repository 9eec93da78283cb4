#include "engine/model_root.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

std::vector<char> bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Hash128 root_of(const std::vector<char>& bytes, kv::LayerFormat format, int window, kernels::Arithmetic arithmetic) {
  const auto gguf = weights::Gguf::from_bytes(std::as_bytes(std::span(bytes)), "tiny");
  EXPECT_TRUE(gguf);
  models::AttentionGroup group;
  group.window = window;
  group.layout = kv::GroupLayout::make(2, 32, std::vector<kv::LayerFormat>{format, format});
  return model_root(*gguf, {&group, 1}, arithmetic);
}

TEST(ModelRootTest, DependsOnAllThatDecidesABlocksBytes) {
  using kernels::Arithmetic;
  constexpr kv::LayerFormat kQ8{kv::KvType::kInt8, kv::KvType::kInt8}, kBf16{kv::KvType::kBf16, kv::KvType::kBf16};
  std::vector<char> bytes = bytes_of(tiny_model("tiny-llama"));
  const Hash128 root = root_of(bytes, kQ8, 0, Arithmetic::kInt8);
  EXPECT_EQ(root_of(bytes, kQ8, 0, Arithmetic::kInt8), root);
  EXPECT_NE(root_of(bytes, kBf16, 0, Arithmetic::kInt8), root);
  EXPECT_NE(root_of(bytes, kQ8, 64, Arithmetic::kInt8), root);
  EXPECT_NE(root_of(bytes, kQ8, 0, Arithmetic::kF32), root);
  EXPECT_NE(root_of(bytes_of(tiny_model("tiny-qwen3")), kQ8, 0, Arithmetic::kInt8), root);
  bytes.back() ^= 1;  // another fine-tune: a weight
  EXPECT_NE(root_of(bytes, kQ8, 0, Arithmetic::kInt8), root);
}

}  // namespace
}  // namespace pagoda::engine
