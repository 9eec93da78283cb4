// matmul, quantize_rows, bf16_rows and gather_row: every type, instruction set and arithmetic against ref, bit for bit; ref against doubles.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/matmul_fixture.h"

namespace pagoda::kernels {
namespace {

using tensor::DType;

constexpr float kUntouched = 12345.0F;

struct Case {
  DType dtype;
  Arithmetic arithmetic;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (size_t i = 0; i < tensor::kDTypeCount; ++i) {
    for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kF32, Arithmetic::kBf16}) {
      cases.push_back({static_cast<DType>(i), arithmetic});
    }
  }
  return cases;
}

struct Ranges {
  Range panels;
  Range rows;
};

std::vector<float> run(Isa isa, Arithmetic arithmetic, const tensor::PanelMatrix& w, Activations& x, Ranges ranges) {
  const KernelTable table = kernel_table(isa);
  std::vector<float> y(static_cast<size_t>(x.n_rows) * static_cast<size_t>(w.n_rows), kUntouched);
  std::vector<std::byte> scratch(matmul_scratch_bytes(w.n_cols));
  table.matmul[static_cast<size_t>(arithmetic)](w, ranges.panels, x.input(), ranges.rows, y.data(), w.n_rows,
                                                scratch.data());
  return y;
}

std::vector<float> run(Isa isa, Arithmetic arithmetic, const tensor::PanelMatrix& w, Activations& x) {
  return run(isa, arithmetic, w, x, {{0, w.n_panels()}, {0, x.n_rows}});
}

// Index of the first differing bit pattern, or -1.
int first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return static_cast<int>(i);
  }
  return -1;
}

class Matmul : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { set_float_mode(); }

  void expect_same_bits(const WeightSpec& spec, Activations& x) {
    const Weights w = random_weights(spec, 11);
    x.convert(kernel_table(Isa::kRef));
    const std::vector<float> expected = run(Isa::kRef, GetParam().arithmetic, w.view, x);
    for (const Isa isa : supported_isas()) {
      const std::vector<float> actual = run(isa, GetParam().arithmetic, w.view, x);
      const int at = first_difference(expected, actual);
      ASSERT_EQ(at, -1) << to_string(isa) << " " << spec.n_rows << " x " << spec.n_cols << ", " << x.n_rows
                        << " rows: " << expected[static_cast<size_t>(at)] << " became "
                        << actual[static_cast<size_t>(at)];
    }
  }

  int smallest_cols() const {
    return tensor::is_float(GetParam().dtype) ? 32 : 32 * tensor::panel_format(GetParam().dtype).block_cells;
  }
};

TEST_P(Matmul, IsTheSameBitsOnEveryInstructionSet) {
  for (const int n_cols : {smallest_cols(), 3 * smallest_cols(), 512}) {
    for (const int n_rows : {1, 15, 16, 17, 100}) {
      for (const int batch : {1, 2, 3, 5, 7, 8, 9, 16, 17, 33}) {
        if (n_rows != 16 && batch != 1 && batch != 7 && batch != 33) continue;
        Activations x = random_activations(batch, n_cols, static_cast<uint32_t>(n_cols + batch));
        expect_same_bits({GetParam().dtype, n_rows, n_cols}, x);
      }
    }
  }
}

// Each way that rows are cut into blocks, with an odd panel at the end.
TEST_P(Matmul, EveryRowCountIsTheSameBits) {
  std::vector<int> batches{63, 64, 65};
  for (int batch = 1; batch <= 20; ++batch) batches.push_back(batch);
  for (const int batch : batches) {
    Activations x = random_activations(batch, 256, static_cast<uint32_t>(batch));
    expect_same_bits({GetParam().dtype, 40, 256}, x);
  }
}

// Columns of several chunks, rows of several tiles.
TEST_P(Matmul, LongRowsAreTheSameBits) {
  for (const int batch : {1, 6, 33, 250}) {
    Activations x = random_activations(batch, 1792, static_cast<uint32_t>(batch));
    expect_same_bits({GetParam().dtype, 17, 1792}, x);
  }
}

TEST_P(Matmul, RowsDependOnThemselvesAlone) {
  const int batch = 70;  // more than a tile of rows
  Activations x = random_activations(batch, 512, 5);
  x.convert(kernel_table(Isa::kRef));
  const Weights w = random_weights({GetParam().dtype, 40, 512}, 6);
  for (const Isa isa : supported_isas()) {
    const std::vector<float> all = run(isa, GetParam().arithmetic, w.view, x);
    for (const int begin : {0, 1, 13, 69}) {
      for (const int end : {begin + 1, begin + 19, batch}) {
        if (end > batch) continue;
        const std::vector<float> some = run(isa, GetParam().arithmetic, w.view, x, {{1, 2}, {begin, end}});
        for (int row = 0; row < batch; ++row) {
          for (int n = 0; n < 40; ++n) {
            const auto i = static_cast<size_t>(row * 40 + n);
            const bool inside = row >= begin && row < end && n >= 16 && n < 32;
            ASSERT_EQ(std::bit_cast<uint32_t>(some[i]), std::bit_cast<uint32_t>(inside ? all[i] : kUntouched))
                << to_string(isa) << " row " << row << " output " << n << " of rows " << begin << ".." << end;
          }
        }
      }
    }
  }
}

TEST_P(Matmul, ExtremesAreExact) {
  for (const Codes codes : {Codes::kLowest, Codes::kHighest, Codes::kRandom}) {
    for (const float magnitude : {6e-8F, 1.0F, 6e4F}) {
      for (const float activation : {1.0F, -3.0F, 1e-37F, 1e-42F, 1e30F}) {
        Activations x(9, 512);
        for (size_t i = 0; i < x.x.size(); ++i)
          x.x[i] = i / 512 == 4 ? 0.0F : i / 512 == 5 && i % 2 != 0 ? -activation : activation;
        expect_same_bits({GetParam().dtype, 17, 512, codes, magnitude}, x);
      }
    }
  }
}

// What the arithmetic reads of activation i of row `row`.
double activation(const Activations& x, size_t row, size_t i, const Case& param) {
  const size_t at = row * static_cast<size_t>(x.n_cols) + i;
  if (param.arithmetic == Arithmetic::kBf16) return tensor::bf16_to_f32(x.bf16[at]);
  const bool quantized = param.arithmetic == Arithmetic::kInt8 && !tensor::is_float(param.dtype);
  return quantized ? static_cast<double>(x.d[at / 32]) * x.q[at] : x.x[at];
}

TEST_P(Matmul, RefIsCloseToDoubles) {
  const int n_cols = 512;
  const Weights w = random_weights({GetParam().dtype, 20, n_cols}, 3);
  Activations x = random_activations(3, n_cols, 4);
  x.convert(kernel_table(Isa::kRef));
  const std::vector<float> y = run(Isa::kRef, GetParam().arithmetic, w.view, x);
  std::vector<float> weights(static_cast<size_t>(n_cols));
  for (int n = 0; n < 20; ++n) {
    tensor::dequantize_panel_row(w.view, n, weights.data());
    if (GetParam().arithmetic == Arithmetic::kBf16) {
      for (float& weight : weights) weight = tensor::bf16_to_f32(tensor::f32_to_bf16(weight));
    }
    for (size_t row = 0; row < 3; ++row) {
      double sum = 0;
      double size = 0;
      for (size_t k = 0; k < 512; ++k) {
        const double a = activation(x, row, k, GetParam());
        sum += a * weights[k];
        size += std::fabs(a * weights[k]);
      }
      EXPECT_NEAR(y[row * 20 + static_cast<size_t>(n)], sum, 4e-6 * size);
    }
  }
}

TEST_P(Matmul, GatherRowIsDequantizeRow) {
  const Weights w = random_weights({GetParam().dtype, 40, 512}, 8);
  std::vector<float> expected(512);
  std::vector<float> actual(512);
  for (const Isa isa : supported_isas()) {
    for (const int row : {0, 15, 16, 39}) {
      tensor::dequantize_panel_row(w.view, row, expected.data());
      kernel_table(isa).gather_row(w.view, row, actual.data());
      EXPECT_EQ(first_difference(expected, actual), -1) << to_string(isa) << " row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Matmul, testing::ValuesIn(all_cases()), [](const auto& test) {
  return std::string(tensor::to_string(test.param.dtype)) + "_" + std::string(to_string(test.param.arithmetic));
});

TEST(QuantizeRows, IsTheSameBitsOnEveryInstructionSet) {
  set_float_mode();
  Activations expected = random_activations(6, 96, 1);
  for (size_t i = 96; i < 128; ++i) expected.x[i] = 0.0F;
  for (size_t i = 128; i < 160; ++i) expected.x[i] *= 1e-38F;
  for (size_t i = 192; i < 224; ++i) expected.x[i] *= 1e38F / 8;
  for (size_t i = 288; i < 320; ++i) expected.x[i] = static_cast<float>(i % 5) - 2.5F;  // ties
  Activations actual = expected;
  expected.convert(kernel_table(Isa::kRef));
  for (const Isa isa : supported_isas()) {
    actual.convert(kernel_table(isa));
    EXPECT_EQ(expected.q, actual.q) << to_string(isa);
    EXPECT_EQ(first_difference(expected.d, actual.d), -1) << to_string(isa);
    EXPECT_EQ(expected.sums16, actual.sums16) << to_string(isa);
  }
}

TEST(QuantizeRows, WritesOnlyItsRange) {
  for (const Isa isa : supported_isas()) {
    Activations x = random_activations(3, 128, 2);
    x.q.assign(x.q.size(), 77);
    kernel_table(isa).quantize_rows(x.x.data(), 128, {1, 2}, {32, 96}, x.quant());
    for (size_t i = 0; i < x.q.size(); ++i) {
      const bool inside = i >= 128 + 32 && i < 128 + 96;
      if (inside) {
        EXPECT_NE(x.d[i / 32], 0.0F) << to_string(isa) << " " << i;
      } else {
        EXPECT_EQ(x.q[i], 77) << to_string(isa) << " " << i;
      }
    }
  }
}

TEST(QuantizeRows, ZeroRowsAndSums) {
  for (const Isa isa : supported_isas()) {
    Activations x(1, 64);
    for (size_t i = 32; i < 64; ++i) x.x[i] = i < 48 ? 2.0F : -2.0F;
    x.convert(kernel_table(isa));
    EXPECT_EQ(x.d[0], 0.0F);
    EXPECT_EQ(x.q[0], 0);
    EXPECT_EQ(x.d[1], 2.0F / 127.0F);
    EXPECT_EQ(x.q[40], 127);
    EXPECT_EQ(x.sums16, (std::vector<int16_t>{0, 0, 16 * 127, -16 * 127}));
  }
}

std::vector<uint16_t> to_bf16(Isa isa, const std::vector<float>& x) {
  set_float_mode();
  const int n = static_cast<int>(x.size());
  std::vector<uint16_t> out(x.size());
  kernel_table(isa).bf16_rows(x.data(), n, {0, 1}, {0, n}, out.data(), n);
  return out;
}

TEST(Bf16Rows, RoundAsTheInstructionDoes) {
  struct Pair {
    uint32_t from;
    uint16_t to;
  };
  constexpr Pair kPairs[] = {
      {0x3F800000, 0x3F80}, {0x3F808000, 0x3F80}, {0x3F808001, 0x3F81},  // 1, a tie down to even, just above it
      {0x3F818000, 0x3F82}, {0xBF818000, 0xBF82}, {0x3F817FFF, 0x3F81},  // ties up to even, just below one
      {0x00000000, 0x0000}, {0x80000000, 0x8000},                        // zeros
      {0x007FFFFF, 0x0000}, {0x807FFFFF, 0x8000}, {0x00000001, 0x0000},  // denormals: 0 of their sign
      {0x00800000, 0x0080}, {0x00807FFF, 0x0080},                        // the smallest normals
      {0x7F7FFFFF, 0x7F80}, {0x7F7F7FFF, 0x7F7F},                        // the largest rounds to infinity
      {0x7F800000, 0x7F80}, {0xFF800000, 0xFF80},                        // infinities
      {0x7F800001, 0x7FC0}, {0xFFBFFFFF, 0xFFFF}, {0x7FFFFFFF, 0x7FFF}, {0xFFC00000, 0xFFC0},  // NaNs stay, quiet
  };
  std::vector<float> x(32, 0.0F);
  for (size_t i = 0; i < std::size(kPairs); ++i) x[i] = std::bit_cast<float>(kPairs[i].from);
  for (const Isa isa : supported_isas()) {
    const std::vector<uint16_t> got = to_bf16(isa, x);
    for (size_t i = 0; i < std::size(kPairs); ++i) {
      EXPECT_EQ(got[i], kPairs[i].to) << to_string(isa) << " " << std::hex << kPairs[i].from << " became " << got[i];
    }
  }
}

TEST(Bf16Rows, IsTheSameBitsOnEveryInstructionSet) {
  std::vector<float> x(1 << 14);
  std::mt19937 random(3);
  for (float& value : x) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  const std::vector<uint16_t> expected = to_bf16(Isa::kRef, x);
  for (const Isa isa : supported_isas()) EXPECT_EQ(expected, to_bf16(isa, x)) << to_string(isa);
}

TEST(Bf16Rows, WritesOnlyItsRange) {
  for (const Isa isa : supported_isas()) {
    Activations x = random_activations(3, 128, 2);
    x.bf16.assign(x.bf16.size(), 7);
    kernel_table(isa).bf16_rows(x.x.data(), 128, {1, 2}, {32, 96}, x.bf16.data(), 128);
    for (size_t i = 0; i < x.bf16.size(); ++i) {
      const bool inside = i >= 128 + 32 && i < 128 + 96;
      EXPECT_EQ(x.bf16[i], inside ? tensor::f32_to_bf16(x.x[i]) : 7) << to_string(isa) << " " << i;
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels
