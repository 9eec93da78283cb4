// The tile driver over emulated tiles against ref, bit for bit: its layout and order, on machines without AMX. Its vector code
// (dequantization into pairs) is compiled for each instruction set; the tiles are the same plain C++.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own _mm512_undefined_*() (GCC bug 105593)
#endif
#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/amx/tiles.h"
#include "kernels/isa_detect.h"
#include "kernels/matmul_fixture.h"
#include "kernels/table.h"

// clang-format off
#include "kernels/avx2/begin.h"
#include "kernels/avx2/simd.h"
namespace {
#include "kernels/avx2/simd_int8.h"
#include "kernels/generic/bf16_rule.h"
#include "kernels/avx2/simd_bf16.h"
#include "kernels/generic/panel_codes.h"
#include "kernels/generic/dequantize.h"
#include "kernels/generic/matmul_output.h"
#include "kernels/generic/with_type.h"
#include "kernels/amx/matmul_tiles.h"
}  // namespace
#include "kernels/avx2/end.h"

#include "kernels/amx/begin.h"
#include "kernels/avx512/simd.h"
namespace {
#include "kernels/avx512/simd_int8.h"
#include "kernels/amx/simd_bf16.h"
#include "kernels/generic/panel_codes.h"
#include "kernels/generic/dequantize.h"
#include "kernels/generic/matmul_output.h"
#include "kernels/generic/with_type.h"
#include "kernels/amx/matmul_tiles.h"
}  // namespace
#include "kernels/amx/end.h"
// clang-format on

namespace pagoda::kernels {
namespace {

using Multiply = std::remove_reference_t<decltype(KernelTable::matmul[0])>;

struct Driver {
  std::string name;
  Multiply run;
};

// What this machine can run.
std::vector<Driver> drivers() {
  const CpuWords words = read_cpu_words();
  const std::vector<Isa> isas = isas_of(words);
  const auto has = [&](Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); };
  const bool converts = (words.leaf7_1_eax & 1U << 5) != 0;  // AVX512-BF16
  std::vector<Driver> found;
  if (has(Isa::kAvx2)) found.push_back({"avx2", avx2::matmul_tiles<EmulatedTiles>});
  if (has(Isa::kAvx512) && converts) found.push_back({"avx512", amx::matmul_tiles<EmulatedTiles>});
  if (has(Isa::kAmx)) found.push_back({"amx", kernel_table(Isa::kAmx).matmul[2]});
  return found;
}

constexpr float kUntouched = 12345.0F;

std::vector<float> run(Multiply multiply, const Weights& w, Activations& x, Range panels, Range rows) {
  std::vector<float> y(static_cast<size_t>(x.n_rows) * static_cast<size_t>(w.view.n_rows), kUntouched);
  std::vector<std::byte> scratch(matmul_scratch_bytes(w.view.n_cols));
  multiply(w.view, panels, x.input(), rows, y.data(), w.view.n_rows, scratch.data());
  return y;
}

void expect_same_bits(const WeightSpec& spec, int batch, Range rows) {
  const Weights w = random_weights(spec, 11);
  Activations x = random_activations(batch, spec.n_cols, static_cast<uint32_t>(batch));
  const KernelTable& ref = kernel_table(Isa::kRef);
  x.convert(ref);
  for (const Range panels : {Range{0, w.view.n_panels()}, Range{w.view.n_panels() / 2, w.view.n_panels()}}) {
    const std::vector<float> expected = run(ref.matmul[2], w, x, panels, rows);
    for (const Driver& driver : drivers()) {
      const std::vector<float> actual = run(driver.run, w, x, panels, rows);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(expected[i]), std::bit_cast<uint32_t>(actual[i]))
            << driver.name << " " << tensor::to_string(spec.dtype) << " " << spec.n_rows << " x " << spec.n_cols
            << ", rows " << rows.begin << ".." << rows.end << " at " << i << ": " << expected[i] << " became "
            << actual[i];
      }
    }
  }
}

class TileMatmul : public testing::TestWithParam<tensor::DType> {
 protected:
  void SetUp() override { set_float_mode(); }
};

TEST_P(TileMatmul, IsTheSameBitsAsRef) {
  for (const int rows : {1, 16, 19, 33}) expect_same_bits({GetParam(), 33, 512}, rows, {0, rows});
  expect_same_bits({GetParam(), 5, 256}, 2, {1, 2});
}

INSTANTIATE_TEST_SUITE_P(Types, TileMatmul, testing::ValuesIn([] {
                           std::vector<tensor::DType> types;
                           for (size_t i = 0; i < tensor::kDTypeCount; ++i)
                             types.push_back(static_cast<tensor::DType>(i));
                           return types;
                         }()),
                         [](const auto& test) { return std::string(tensor::to_string(test.param)); });

// Every split into blocks, and sums that wait in y between chunks, of whole panels and of one that y has a part of.
TEST(TileMatmulShapes, AreTheSameBitsAsRef) {
  set_float_mode();
  using tensor::DType;
  for (const int rows : {15, 17, 31, 32, 34, 47, 64, 65, 81}) expect_same_bits({DType::kQ4_0, 32, 96}, rows, {0, rows});
  expect_same_bits({DType::kQ8_0, 40, 32 * 19}, 35, {0, 35});  // two chunks of cells
  expect_same_bits({DType::kQ8_0, 24, 32 * 37}, 49, {1, 49});  // three
  expect_same_bits({DType::kQ4_0, 3, 32 * 20}, 34, {0, 34});
  expect_same_bits({DType::kF32, 16, 32}, 1100, {2, 1100});  // more rows than share a pass
  expect_same_bits({DType::kBF16, 17, 64}, 3, {1, 1});       // nothing to do
}

TEST(TileMatmulShapes, ScratchHoldsTheTiles) { EXPECT_GE(matmul_scratch_bytes(32), avx2::kTileScratchBytes); }

}  // namespace
}  // namespace pagoda::kernels
