#include "kernels/amx/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/kernels.h"

namespace pagoda::kernels {
namespace {

struct Operands {
  uint16_t a[kTileRows][2 * kTilePairs];
  uint16_t b[kTilePairs][kTileFloats][2];
  float c[kTileRows][kTileFloats];
};

Operands small_integers() {
  Operands o;
  for (int row = 0; row < kTileRows; ++row) {
    for (int k = 0; k < 2 * kTilePairs; ++k) o.a[row][k] = tensor::f32_to_bf16(static_cast<float>((row + 3 * k) % 7));
    for (int n = 0; n < kTileFloats; ++n) o.c[row][n] = static_cast<float>(100 * row + n);
  }
  for (int k = 0; k < 2 * kTilePairs; ++k) {
    for (int n = 0; n < kTileFloats; ++n) {
      o.b[k / 2][n][k % 2] = tensor::f32_to_bf16(static_cast<float>((2 * n + 5 * k) % 9) - 4.0F);
    }
  }
  return o;
}

template <class Tiles>
void multiply(const Operands& o, const TileConfig& config, float* c) {
  Tiles tiles;
  tiles.configure(config);
  tiles.template load<0>(o.c, kTileBytes);
  tiles.template load<4>(o.a, kTileBytes);
  tiles.template load<6>(o.b, kTileBytes);
  tiles.template dot_bf16<0, 4, 6>();
  tiles.template store<0>(c, kTileBytes);
}

bool has_amx() {
  const std::vector<Isa> isas = supported_isas();
  return std::find(isas.begin(), isas.end(), Isa::kAmx) != isas.end();
}

// Calls f with each backend's multiply that this machine can run.
template <class F>
void each_backend(const F& f) {
  set_float_mode();
  f(multiply<EmulatedTiles>);
  if (has_amx()) f(multiply<AmxTiles>);
}

TEST(Tiles, AddTheProductOfPairs) {
  const Operands o = small_integers();
  each_backend([&](auto* run) {
    float c[kTileRows][kTileFloats] = {};
    run(o, whole_tiles(), &c[0][0]);
    for (int row = 0; row < kTileRows; ++row) {
      for (int n = 0; n < kTileFloats; ++n) {
        float sum = o.c[row][n];
        for (int k = 0; k < 2 * kTilePairs; ++k) {
          sum += tensor::bf16_to_f32(o.a[row][k]) * tensor::bf16_to_f32(o.b[k / 2][n][k % 2]);
        }
        EXPECT_EQ(c[row][n], sum) << row << " " << n;
      }
    }
  });
}

TEST(Tiles, FewRowsAndFewOutputs) {
  const Operands o = small_integers();
  TileConfig config = whole_tiles();
  config.set(0, 3, 5 * 4);
  config.set(4, 3);
  config.set(6, kTilePairs, 5 * 4);
  each_backend([&](auto* run) {
    float whole[kTileRows][kTileFloats] = {};
    float few[kTileRows][kTileFloats] = {};
    run(o, whole_tiles(), &whole[0][0]);
    run(o, config, &few[0][0]);
    for (int row = 0; row < kTileRows; ++row) {
      for (int n = 0; n < kTileFloats; ++n) EXPECT_EQ(few[row][n], row < 3 && n < 5 ? whole[row][n] : 0.0F);
    }
  });
}

// Numbers that come out differently in any other order: the chains do not see C, nor each other before their end.
TEST(Tiles, EvenAndOddChainsAreSummedApart) {
  Operands o = {};
  const uint16_t one = tensor::f32_to_bf16(1.0F);
  const uint16_t huge = tensor::f32_to_bf16(0x1p40F);
  const uint16_t minus_huge = tensor::f32_to_bf16(-0x1p40F);
  for (auto& pair : o.b) pair[0][0] = pair[0][1] = one;
  o.a[0][0] = huge, o.a[0][1] = one, o.a[0][2] = minus_huge, o.a[0][4] = one;  // (2^40 - 2^40 + 1) + 1
  o.a[1][0] = huge, o.a[1][1] = minus_huge, o.a[1][2] = one, o.a[1][3] = one;  // (2^40 + 1) + (-2^40 + 1)
  o.a[2][0] = huge, o.a[2][1] = one;                                           // -2^40 + (2^40 + 1)
  o.c[2][0] = -0x1p40F;
  o.a[3][0] = one;  // 2^24 + (1 + 1), but (2^24 + 1) + 1 is 2^24
  o.a[3][1] = one;
  o.c[3][0] = 0x1p24F;
  each_backend([&](auto* run) {
    float c[kTileRows][kTileFloats] = {};
    run(o, whole_tiles(), &c[0][0]);
    EXPECT_EQ(c[0][0], 2.0F);
    EXPECT_EQ(c[1][0], 0.0F);
    EXPECT_EQ(c[2][0], 0.0F);
    EXPECT_EQ(c[3][0], 0x1p24F + 2.0F);
  });
}

TEST(Tiles, ProductsAreFusedAndDenormalsAreZero) {
  Operands o = {};
  const auto bf16 = [](float x) { return tensor::f32_to_bf16(x); };
  // 2^-120, then a product of 2^-130 that a rounded multiplication would flush.
  o.a[0][0] = bf16(0x1p-60F), o.a[0][2] = bf16(0x1p-100F);
  o.b[0][0][0] = bf16(0x1p-60F), o.b[1][0][0] = bf16(0x1p-30F);
  o.a[1][0] = 0x0001;  // a denormal times 2^100
  o.b[0][1][0] = bf16(0x1p100F);
  o.a[2][0] = bf16(0x1p-100F);  // a product of 2^-130
  o.b[0][2][0] = bf16(0x1p-30F);
  o.a[3][0] = bf16(1.0F);
  o.c[3][5] = 1e-40F;
  each_backend([&](auto* run) {
    float c[kTileRows][kTileFloats] = {};
    run(o, whole_tiles(), &c[0][0]);
    EXPECT_EQ(c[0][0], 0x1p-120F + 0x1p-130F);
    EXPECT_EQ(c[1][1], 0.0F);
    EXPECT_EQ(std::bit_cast<uint32_t>(c[2][2]), 0U);
    EXPECT_EQ(std::bit_cast<uint32_t>(c[3][5]), 0U);
  });
}

}  // namespace
}  // namespace pagoda::kernels
