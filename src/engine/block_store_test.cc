#include "engine/block_store.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pagoda::engine {
namespace {

constexpr size_t kExtentBytes = size_t{2} << 20;

TEST(BlockStore, TouchesAheadOfWhatIsUsedAndNothingElse) {
  constexpr size_t kExtents = 4 * kReadyPart;  // an eighth: 4 extents
  BlockStore store = *BlockStore::make(kExtents, kExtentBytes, {{kExtentBytes}});
  const auto touch_all = [&](size_t n_used) {
    int calls = 1;
    while (store.touch_ahead(n_used)) ++calls;
    return calls;
  };
  const auto block = [&](uint32_t extent) {
    return std::span(store.address(kv::ModelId(0), kv::GroupId(0), kv::BlockId::at(extent, 0)), kExtentBytes);
  };
  EXPECT_EQ(touch_all(0), 4);
  EXPECT_FALSE(store.touch_ahead(0));
  for (uint32_t extent = 0; extent < 6; ++extent) std::ranges::fill(block(extent), std::byte{7});
  EXPECT_EQ(touch_all(6), 4);  // two were used before they were touched
  for (uint32_t extent = 0; extent < 6; ++extent)
    EXPECT_EQ(std::ranges::count(block(extent), std::byte{7}), kExtentBytes) << extent;
  EXPECT_EQ(touch_all(kExtents), 1);
}

}  // namespace
}  // namespace pagoda::engine
