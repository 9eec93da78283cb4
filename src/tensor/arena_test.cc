#include "tensor/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pagoda::tensor {
namespace {

TEST(ArenaTest, PartsAreAlignedZeroedApartAndStayWhenItMoves) {
  Arena arena;
  std::vector<std::span<std::byte>> parts;
  size_t total = 0;
  for (size_t bytes = 1; bytes < (size_t{40} << 20); bytes = bytes * 3 + 5) {
    const auto part = arena.take(bytes);
    ASSERT_TRUE(part) << part.error().to_string();
    ASSERT_EQ(part->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part->data()) % 64, 0U);
    EXPECT_TRUE(std::ranges::all_of(*part, [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(*part, static_cast<std::byte>(parts.size() + 1));
    parts.push_back(*part);
    total += bytes;
  }
  EXPECT_EQ(arena.taken_bytes(), total);
  const Arena moved = std::move(arena);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(std::ranges::all_of(parts[i], [&](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
  }
}

// What a model's layers are made of: parts below 2 MiB, which alone would get small pages.
TEST(ArenaTest, SmallPartsLieSideBySide) {
  Arena arena;
  const auto first = *arena.take(300'000);
  const auto second = *arena.take(300'000);
  EXPECT_EQ(second.data() - first.data(), 300'032);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % (size_t{2} << 20), 0U);
}

TEST(ArenaTest, NothingAndTheImpossible) {
  Arena arena;
  EXPECT_TRUE(arena.take(0)->empty());
  const auto part = arena.take(std::numeric_limits<size_t>::max() / 2 + 1);
  ASSERT_FALSE(part);
  EXPECT_EQ(part.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace pagoda::tensor
