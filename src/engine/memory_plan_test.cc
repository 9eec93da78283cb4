#include "engine/memory_plan.h"

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

models::AttentionGroup group(int window, size_t block_bytes) {
  models::AttentionGroup out;
  out.window = window;
  out.layout.block_bytes = block_bytes;
  return out;
}

TEST(MemoryPlanTest, ContextsTakeWholeBlocks) {
  const std::vector<models::AttentionGroup> groups{group(0, 1000)};
  EXPECT_EQ(context_bytes(groups, 0, 256), 0u);
  EXPECT_EQ(context_bytes(groups, 1, 256), 1000u);
  EXPECT_EQ(context_bytes(groups, 32, 256), 1000u);
  EXPECT_EQ(context_bytes(groups, 33, 256), 2000u);
}

TEST(MemoryPlanTest, WindowsHoldTheirWindowAChunkAndABlock) {
  const std::vector<models::AttentionGroup> groups{group(0, 1000), group(64, 10)};
  EXPECT_EQ(context_bytes(groups, 64, 128), 2 * 1000u + 2 * 10u);
  EXPECT_EQ(context_bytes(groups, 3200, 128), 100 * 1000u + 7 * 10u);
}

TEST(MemoryPlanTest, TheLeastBudgetIsWholeExtentsOfEachGroup) {
  const std::vector<models::AttentionGroup> groups{group(0, 1000), group(64, 10)};
  EXPECT_EQ(least_budget_bytes(groups, 64, 128, 4096), 2 * 4096u);
  EXPECT_EQ(least_budget_bytes(groups, 32 * 5, 128, 4096), 3 * 4096u);  // 5 blocks, 4 to an extent
}

TEST(MemoryPlanTest, SequencesShareExtentsAndOneIsPrefilled) {
  const std::vector<models::AttentionGroup> groups{group(0, 1000), group(64, 10)};
  EXPECT_EQ(shared_budget_bytes(groups, 1, 160, 128, 4096), least_budget_bytes(groups, 160, 128, 4096));
  EXPECT_EQ(shared_budget_bytes(groups, 4, 160, 128, 4096),
            (5 + 1) * 4096u);  // 4 x 5 blocks fill 5 extents; 3 x 3 + 5 lie in one
  EXPECT_EQ(shared_budget_bytes(groups, 200, 32, 0, 4096), (50 + 1) * 4096u);
}

TEST(MemoryPlanTest, AQuarterOfMemoryAtMostSixteenContexts) {
  EXPECT_EQ(auto_budget_bytes(100, 4000), 1000u);
  EXPECT_EQ(auto_budget_bytes(100, 1 << 30), 1600u);
}

}  // namespace
}  // namespace pagoda::engine
