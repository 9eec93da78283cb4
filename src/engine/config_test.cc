#include "engine/config.h"

#include <gtest/gtest.h>

namespace pagoda::engine {
namespace {

TEST(ConfigTest, SessionsTakeASmallPartOfAMemoryLimit) {
  EXPECT_EQ(session_table_bytes(uint64_t{64} << 20), uint64_t{1} << 20);
  EXPECT_EQ(session_table_bytes(uint64_t{256} << 20), uint64_t{2} << 20);
  EXPECT_EQ(session_table_bytes(uint64_t{64} << 30), uint64_t{8} << 20);
}

}  // namespace
}  // namespace pagoda::engine
