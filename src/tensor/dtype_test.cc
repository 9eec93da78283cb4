#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <set>

namespace pagoda::tensor {
namespace {

TEST(DType, NumbersNamesAndSizesAreGgufs) {
  EXPECT_EQ(info(DType::kBF16).gguf_type, 30U);
  EXPECT_EQ(info(DType::kIQ4_XS).gguf_type, 23U);
  EXPECT_EQ(to_string(DType::kQ5_K), "Q5_K");
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    const GgufTypeInfo* by_number = gguf_type_info(info(type).gguf_type);
    ASSERT_NE(by_number, nullptr);
    EXPECT_EQ(by_number->dtype, type);
    EXPECT_EQ(by_number->name, info(type).name);
    EXPECT_EQ(by_number->block_bytes, info(type).block_bytes);
    EXPECT_TRUE(is_float(type) ? info(type).block_elements == 1 : info(type).block_elements % kCellElements == 0);
  }
}

TEST(DType, KnownButUnsupportedTypesKeepTheirName) {
  ASSERT_NE(gguf_type_info(19), nullptr);
  EXPECT_EQ(gguf_type_info(19)->name, "IQ1_S");
  EXPECT_FALSE(gguf_type_info(19)->dtype.has_value());
  EXPECT_EQ(gguf_type_name(39), "MXFP4");
  EXPECT_EQ(gguf_type_info(4), nullptr);
  EXPECT_EQ(gguf_type_info(4'000'000'000U), nullptr);
  EXPECT_EQ(gguf_type_name(4), "type 4");
}

TEST(DType, RowBytes) {
  EXPECT_EQ(row_bytes(DType::kQ4_K, 512), 288);
  EXPECT_EQ(row_bytes(DType::kF16, 3), 6);
  EXPECT_EQ(row_bytes(DType::kQ8_0, 0), 0);
}

}  // namespace
}  // namespace pagoda::tensor
