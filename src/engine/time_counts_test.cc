#include "engine/time_counts.h"

#include <gtest/gtest.h>

#include <numeric>

namespace pagoda::engine {
namespace {

constexpr std::array<int64_t, 2> kBoundsUs{10, 20};

TEST(TimeCountsTest, ABoundBelongsToItsBucketAndTheLastTakesTheRest) {
  TimeCounts<kBoundsUs> counts;
  for (const int64_t us : {0, 10, 11, 20, 21, 1000}) counts.add(us);
  EXPECT_EQ(counts.counts, (std::array<uint16_t, 3>{2, 2, 2}));
  EXPECT_EQ(counts.sum_us, 1062);
}

TEST(TimeCountsTest, TheBoundsThatRecordsUseAscend) {
  EXPECT_TRUE(std::ranges::is_sorted(kTokenGapBoundsUs));
  EXPECT_TRUE(std::ranges::is_sorted(kFirstTokenBoundsUs));
}

}  // namespace
}  // namespace pagoda::engine
