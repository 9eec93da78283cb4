// bf16 attention on tiles against ref, bit for bit: the emulated tiles wherever AVX-512 with BF16 runs (AMX itself is one of
// supported_isas(), which AttentionTest goes through).
#include "kernels/amx/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/attention_fixture.h"

namespace pagoda::kernels {
namespace {

bool can_emulate() {  // the driver's vector code is that of AMX machines
  const std::vector<Isa> isas = supported_isas();
  return std::find(isas.begin(), isas.end(), Isa::kAvx512) != isas.end() && __builtin_cpu_supports("avx512bf16");
}

void expect_the_bits_of_ref(Rows& rows, const std::string& what) {
  KernelTable table = kernel_table(Isa::kAvx512);
  use_emulated_tiles(table);
  const std::vector<float> want = rows.run(Isa::kRef, Arithmetic::kBf16);
  EXPECT_TRUE(same_bits(rows.run(table, Arithmetic::kBf16), want)) << what;
}

class TileAttentionTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!can_emulate()) GTEST_SKIP() << "needs AVX-512 with BF16";
    set_float_mode();
  }
  int head_dim() const { return GetParam(); }
};

// Every number of rows around the edges of one, two and four tiles; contexts that end in the middle of blocks and spans.
TEST_P(TileAttentionTest, GivesTheBitsOfRef) {
  for (const kv::LayerFormat format : kFormats) {
    const Cache cache(format, head_dim(), 330);
    const struct {
      int first, n_rows, rows_per_token;
    } cases[] = {{0, 1, 1},    {31, 15, 2},  {250, 16, 1}, {299, 17, 4},
                 {255, 32, 3}, {280, 33, 3}, {20, 63, 3},  {300, 64, 9}};
    for (const auto& c : cases) {
      Rows rows(cache, run_of_positions(c.first, c.n_rows, c.rows_per_token));
      expect_the_bits_of_ref(rows, to_string(format) + " from " + std::to_string(c.first));
    }
  }
}

TEST_P(TileAttentionTest, WindowsAndDroppedBlocks) {
  for (const kv::LayerFormat format : {kQ8, kBf16}) {
    for (const int window : {1, 33, 100, 256}) {
      Cache cache(format, head_dim(), 330);
      constexpr int kFirst = 300;
      for (int b = 0; (b + 1) * kv::kBlockTokens <= kFirst - window + 1; ++b) cache.drop(b);
      Rows rows(cache, run_of_positions(kFirst, 27, 2));
      rows.args.window = window;
      expect_the_bits_of_ref(rows, to_string(format) + " window " + std::to_string(window));
    }
  }
}

TEST_P(TileAttentionTest, RowsFarApartAndSoftcap) {
  Cache cache(kQ8, head_dim(), 560);
  for (const int gone : {4, 5, 6, 7, 8, 9, 10, 11, 12}) cache.drop(gone);
  Rows rows(cache, {100, 101, 540, 541, 102, 559});
  rows.args.window = 20;
  rows.args.softcap = 1.5f;
  expect_the_bits_of_ref(rows, "far apart");
}

INSTANTIATE_TEST_SUITE_P(HeadDims, TileAttentionTest, testing::Values(16, 48, 64, 80, 256));

}  // namespace
}  // namespace pagoda::kernels
