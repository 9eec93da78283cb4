#include "tensor/dequant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace pagoda::tensor {
namespace {

constexpr DType kQuantized[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,   DType::kQ2_K,
                                DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

// tests/golden/dequant/<TYPE>.bin: n blocks, then their n * block_elements values (make_dequant_vectors.py).
struct Golden {
  std::string blocks;
  std::vector<float> values;
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(blocks.data()); }
  int64_t n_elements() const { return static_cast<int64_t>(values.size()); }
};

Golden read_golden(DType type) {
  const std::string path =
      std::string(PAGODA_SOURCE_DIR "/tests/golden/dequant/") + std::string(to_string(type)) + ".bin";
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const DTypeInfo& known = info(type);
  const auto unit = static_cast<size_t>(known.block_bytes + 4 * known.block_elements);
  EXPECT_TRUE(!all.empty() && all.size() % unit == 0) << path;
  const size_t n_blocks = all.size() / unit;
  Golden golden{all.substr(0, n_blocks * static_cast<size_t>(known.block_bytes)), {}};
  golden.values.resize(n_blocks * static_cast<size_t>(known.block_elements));
  std::memcpy(golden.values.data(), all.data() + golden.blocks.size(), golden.values.size() * sizeof(float));
  return golden;
}

void expect_same_bits(const std::vector<float>& expected, const std::vector<float>& actual, DType type) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(actual[i]))
        << to_string(type) << " element " << i << ": " << expected[i] << " against " << actual[i];
  }
}

TEST(Dequant, EveryTypeEqualsTheGgufPackageBitForBit) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    const Golden golden = read_golden(type);
    std::vector<float> out(golden.values.size());
    dequantize_row(type, golden.data(), golden.n_elements(), out.data());
    expect_same_bits(golden.values, out, type);
  }
}

TEST(Dequant, CellsRecombineToTheSameBits) {
  for (const DType type : kQuantized) {
    const Golden golden = read_golden(type);
    std::vector<float> out(golden.values.size());
    for (int64_t cell = 0; cell < golden.n_elements() / kCellElements; ++cell) {
      QuantCell q;
      std::memset(&q, 0x5A, sizeof(q));  // decode_cell must write every field
      decode_cell(type, golden.data(), cell, &q);
      for (int j = 0; j < 32; ++j) {
        const float product = q.d * static_cast<float>(q.sc[j / 16]) * static_cast<float>(q.codes[j]);
        const float minimum = q.c * static_cast<float>(q.m[j / 16]);
        out[static_cast<size_t>(cell * kCellElements + j)] = has_minimum(type) ? product + minimum : product;
      }
      EXPECT_TRUE(has_minimum(type) || (q.c == 0 && q.m[0] == 0 && q.m[1] == 0));
    }
    expect_same_bits(golden.values, out, type);
  }
}

// The int8 arithmetic needs the integer sums of a cell below 2^24 (exact in f32): Σ sc·q_w·q_a with |q_a| <= 127.
TEST(Dequant, IntegerSumsOfACellStayExactInF32) {
  for (const DType type : kQuantized) {
    const Golden golden = read_golden(type);
    for (int64_t cell = 0; cell < golden.n_elements() / kCellElements; ++cell) {
      QuantCell q;
      decode_cell(type, golden.data(), cell, &q);
      int64_t sum = 0;
      int64_t minima = 0;
      for (int j = 0; j < 32; ++j) {
        sum += std::abs(int64_t{q.sc[j / 16]} * q.codes[j]) * 127;
        minima += std::abs(int64_t{q.m[j / 16]}) * 127;
      }
      EXPECT_LT(sum, 1 << 24) << to_string(type);
      EXPECT_LT(minima, 1 << 24) << to_string(type);
    }
  }
}

TEST(DequantDeathTest, MisuseIsABug) {
  float out[256];
  std::byte bytes[256]{};
  QuantCell cell;
  EXPECT_DEATH(dequantize_row(DType::kQ4_K, bytes, 100, out), "CHECK|block_elements");
  EXPECT_DEATH(decode_cell(DType::kF16, bytes, 0, &cell), "CHECK|quantized");
}

}  // namespace
}  // namespace pagoda::tensor
