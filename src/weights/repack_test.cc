#include "weights/repack.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "tensor/dequant.h"

namespace pagoda::weights {
namespace {

using tensor::DType;

std::vector<std::byte> random_bytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255U);
  return bytes;
}

class RepackEveryType : public testing::TestWithParam<int> {
 protected:
  DType dtype() const { return static_cast<DType>(GetParam()); }
};

TEST_P(RepackEveryType, EveryElementComesBackExactly) {
  for (const int n_rows : {1, 15, 16, 17, 40}) {
    for (const int n_cols : {256, 768}) {
      const auto row_bytes = static_cast<size_t>(tensor::row_bytes(dtype(), n_cols));
      const auto bytes = random_bytes(static_cast<size_t>(n_rows) * row_bytes, 7U + static_cast<uint32_t>(n_rows));
      tensor::Arena arena;
      const auto packed = repack({dtype(), n_rows, n_cols, bytes}, arena);
      ASSERT_TRUE(packed) << packed.error().to_string();
      std::vector<float> expected(static_cast<size_t>(n_cols));
      std::vector<float> actual(static_cast<size_t>(n_cols));
      for (int row = 0; row < n_rows; ++row) {
        tensor::dequantize_row(dtype(), bytes.data() + static_cast<size_t>(row) * row_bytes, n_cols, expected.data());
        tensor::dequantize_panel_row(packed->view, row, actual.data());
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(actual[i])) << row << ", " << i;
        }
      }
    }
  }
}

TEST_P(RepackEveryType, CostsAtMostFivePercentMoreThanTheFile) {
  const int64_t file = 16 * tensor::row_bytes(dtype(), 1024);
  EXPECT_LE(static_cast<double>(tensor::panel_bytes(dtype(), 1024)), 1.05 * static_cast<double>(file));
}

TEST_P(RepackEveryType, PanelsAreFilledIndependently) {
  const int n_rows = 50;
  const auto bytes = random_bytes(static_cast<size_t>(n_rows * tensor::row_bytes(dtype(), 256)), 3);
  const FileMatrix source{dtype(), n_rows, 256, bytes};
  tensor::Arena arena;
  const auto whole = repack(source, arena);
  const auto pieces = allocate_panels(source, arena);
  ASSERT_TRUE(whole && pieces);
  repack_panels(source, 3, 4, *pieces);
  repack_panels(source, 0, 0, *pieces);
  repack_panels(source, 0, 3, *pieces);
  const auto a = whole->bytes;
  const auto b = pieces->bytes;
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

INSTANTIATE_TEST_SUITE_P(Types, RepackEveryType, testing::Range(0, static_cast<int>(tensor::kDTypeCount)),
                         [](const auto& type) {
                           return std::string(tensor::to_string(static_cast<DType>(type.param)));
                         });

TEST(Repack, RefusesShapesAndByteCounts) {
  const std::vector<std::byte> bytes(1 << 16);
  const auto with = [&](DType type, int64_t rows, int64_t cols, size_t n) {
    tensor::Arena arena;
    return repack({type, rows, cols, std::span(bytes).first(n)}, arena);
  };
  EXPECT_TRUE(with(DType::kQ4_0, 3, 32, 54));
  EXPECT_EQ(with(DType::kQ4_0, 3, 32, 53).error().code, ErrorCode::kBadFile);
  EXPECT_EQ(with(DType::kQ4_0, 3, 16, 54).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(with(DType::kQ4_K, 1, 128, 72).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(with(DType::kF32, 1, 20, 80).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(with(DType::kF32, 0, 32, 0).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(with(DType::kF32, int64_t{1} << 40, 32, 0).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace pagoda::weights
