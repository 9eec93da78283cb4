#include "tensor/panel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tensor/aligned_buffer.h"
#include "tensor/float16.h"

namespace pagoda::tensor {
namespace {

std::vector<DType> quantized_types() {
  std::vector<DType> types;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (!is_float(static_cast<DType>(i))) types.push_back(static_cast<DType>(i));
  }
  return types;
}

bool same(const QuantCell& a, const QuantCell& b) {
  return std::memcmp(a.codes, b.codes, sizeof(a.codes)) == 0 && a.sc[0] == b.sc[0] && a.sc[1] == b.sc[1] &&
         a.m[0] == b.m[0] && a.m[1] == b.m[1] && a.d == b.d && a.c == b.c;
}

TEST(Panel, GivesBackEveryCell) {
  std::mt19937 random(1);
  for (const DType type : quantized_types()) {
    const int n_cols = 512;
    std::vector<std::byte> panel(panel_bytes(type, n_cols));
    const int block_cells = panel_format(type).block_cells;
    std::vector<QuantCell> cells(16 * kPanelRows);
    for (int cell = 0; cell < 16; ++cell) {
      QuantCell* rows = &cells[static_cast<size_t>(cell) * kPanelRows];
      for (int lane = 0; lane < kPanelRows; ++lane) {
        std::byte block[512];
        for (std::byte& byte : block) byte = static_cast<std::byte>(random() & 255U);
        decode_cell(type, block, 0, &rows[lane]);
        rows[lane].d = static_cast<float>(cell / block_cells + 1) * 0.25F;  // one per block
        rows[lane].c = has_minimum(type) ? -static_cast<float>(lane) : 0.0F;
      }
      pack_panel_cell(type, n_cols, cell, rows, panel.data());
    }
    for (int cell = 0; cell < 16; ++cell) {
      for (int lane = 0; lane < kPanelRows; ++lane) {
        QuantCell out;
        unpack_panel_cell(type, n_cols, panel.data(), cell, lane, &out);
        EXPECT_TRUE(same(out, cells[static_cast<size_t>(cell * kPanelRows + lane)])) << to_string(type) << " " << cell;
      }
    }
  }
}

// The places that kernels rely on: one code set, every other bit as for code 0.
TEST(Panel, PutsCodesWhereKernelsReadThem) {
  QuantCell rows[kPanelRows] = {};
  std::vector<std::byte> zero(panel_bytes(DType::kQ5_1, 64));
  std::vector<std::byte> one(zero.size());
  for (int cell = 0; cell < 2; ++cell) pack_panel_cell(DType::kQ5_1, 64, cell, rows, zero.data());
  one = zero;
  rows[3].codes[22] = 0x1A;  // lane 3, quad 5, column 2 of the quad
  pack_panel_cell(DType::kQ5_1, 64, 1, rows, one.data());
  const size_t cell = panel_format(DType::kQ5_1).code_bytes();
  EXPECT_EQ(cell, 320U);
  for (size_t i = 0; i < one.size(); ++i) {
    int expected = 0;
    if (i == cell + 2 * 64 + 3 * 4 + 2) expected = 0xA << 4;  // pair 2 of the low plane, high nibble
    if (i == cell + 256 + 3 * 4 + 2) expected = 1 << 5;       // bit 5 of the high plane
    EXPECT_EQ(static_cast<int>(one[i]), expected) << i;
  }
}

TEST(Panel, SizesAreTheFilesWithWiderSubScales) {
  EXPECT_EQ(panel_bytes(DType::kQ4_0, 64), 16U * 2 * sizeof(BlockQ4_0));
  EXPECT_EQ(panel_bytes(DType::kQ8_0, 64), 16U * 2 * sizeof(BlockQ8_0));
  EXPECT_EQ(panel_bytes(DType::kQ2_K, 256), 16U * sizeof(BlockQ2_K));
  EXPECT_EQ(panel_bytes(DType::kQ6_K, 512), 16U * 2 * sizeof(BlockQ6_K));
  EXPECT_EQ(panel_bytes(DType::kQ4_K, 256), 16U * (sizeof(BlockQ4_K) + 4));
  EXPECT_EQ(panel_bytes(DType::kQ3_K, 512), 16U * 2 * (sizeof(BlockQ3_K) + 4));
  EXPECT_EQ(panel_bytes(DType::kIQ4_XS, 512), 16U * 2 * (sizeof(BlockIQ4_XS) + 2));
  EXPECT_EQ(panel_bytes(DType::kBF16, 32), 16U * 32 * 2);
}

}  // namespace
}  // namespace pagoda::tensor
