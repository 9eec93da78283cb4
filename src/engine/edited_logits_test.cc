#include "engine/edited_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace pagoda::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kVocab = 3 * kernels::kLogitsTile + 17;

double random(uint32_t i, uint32_t draw) { return uniform(11, 0, i, draw); }

std::vector<float> random_row(uint32_t round) {
  std::vector<float> row(kVocab);
  for (uint32_t i = 0; i < row.size(); ++i)
    row[i] = std::floor(static_cast<float>(20 * random(i, round)));  // many ties
  return row;
}

TEST(EditedLogitsTest, IsTheRowThatWasCopiedAndChanged) {
  EditedLogits edited(kernels::kernel_table(kernels::best_isa()));
  for (uint32_t round = 0; round < 50; ++round) {
    const std::vector<float> row = random_row(round);
    std::vector<float> want = row;
    edited.reset({row});
    for (uint32_t i = 0; i < round * 20; ++i) {
      const auto id = static_cast<size_t>(random(i, 1000 + round) * kVocab);
      const float change = random(i, 2000 + round) < 0.1 ? kMinusInfinity : static_cast<float>(i % 7) - 3.0f;
      want[id] += change;
      *edited.edit(TokenId(static_cast<int32_t>(id))) += change;
    }
    edited.finish();
    ASSERT_EQ(edited.n_tiles(), 4);
    std::vector<float> found;
    for (int t = 0; t < edited.n_tiles(); ++t) {
      const std::span<const float> tile = edited.tile(t);
      found.insert(found.end(), tile.begin(), tile.end());
      EXPECT_EQ(edited.tile_max(t), *std::ranges::max_element(tile));
    }
    EXPECT_EQ(found, want);
    const auto largest = std::ranges::max_element(want);
    EXPECT_EQ(edited.largest().index, largest - want.begin());
    EXPECT_EQ(edited.largest().max, *largest);
  }
}

TEST(EditedLogitsTest, TakesTheTilesItIsGiven) {
  const std::vector<float> row = random_row(0);
  const std::vector<kernels::LogitTile> tiles{{7, 1}, {9, 1030}, {9, 2050}, {1, 3080}};
  EditedLogits edited(kernels::kernel_table(kernels::best_isa()));
  edited.reset({row, tiles});
  EXPECT_EQ(edited.largest().index, 1030);
  EXPECT_EQ(edited.reached_by(1), 9);
  EXPECT_EQ(edited.reached_by(3), 7);
  EXPECT_EQ(edited.reached_by(4), 1);
  EXPECT_EQ(edited.reached_by(5), kMinusInfinity);
}

TEST(EditedLogitsTest, TokensOutsideOfTheRowCannotBeEdited) {
  const std::vector<float> row(100, 1.0f);
  EditedLogits edited(kernels::kernel_table(kernels::best_isa()));
  edited.reset({row});
  EXPECT_EQ(edited.edit(TokenId(100)), nullptr);
  EXPECT_EQ(edited.edit(TokenId(-1)), nullptr);
  EXPECT_NE(edited.edit(TokenId(99)), nullptr);
}

TEST(EditedLogitsTest, AMaximumThatStopsBeingANumberIsNoMaximum) {
  std::vector<float> row(100, 1.0f);
  row[50] = 4.0f;
  row[70] = 3.0f;
  EditedLogits edited(kernels::kernel_table(kernels::best_isa()));
  edited.reset({row});
  *edited.edit(TokenId(50)) = std::numeric_limits<float>::quiet_NaN();
  edited.finish();
  EXPECT_EQ(edited.largest().index, 70);
}

}  // namespace
}  // namespace pagoda::engine
