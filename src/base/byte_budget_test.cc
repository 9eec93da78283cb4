#include "base/byte_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "base/test_seed.h"

namespace pagoda {
namespace {

TEST(ByteBudgetTest, WhatIsReservedIsGivenBack) {
  ByteBudget budget(1000);
  {
    std::optional<ByteReservation> one = budget.try_reserve(600);
    ASSERT_TRUE(one);
    EXPECT_EQ(budget.used_bytes(), 600u);
    ByteReservation moved = std::move(*one);
    one.reset();
    EXPECT_EQ(budget.used_bytes(), 600u);
    moved.shrink_to(10);
    EXPECT_EQ(budget.used_bytes(), 10u);
    EXPECT_TRUE(moved.grow_to(700));
    EXPECT_FALSE(moved.grow_to(751));
    EXPECT_EQ(moved.bytes(), 700u);
    EXPECT_TRUE(moved.grow_to(5)) << "it has more already";
    EXPECT_EQ(moved.bytes(), 700u);
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(ByteBudgetTest, AssigningGivesBackWhatWasThere) {
  ByteBudget budget(1000);
  ByteReservation held = *budget.try_reserve(300);
  held = *budget.try_reserve(200);
  EXPECT_EQ(budget.used_bytes(), 200u);
  held = {};
  EXPECT_EQ(budget.used_bytes(), 0u);
}

constexpr uint64_t kSmall = 100, kBytes = 256 * kSmall, kMost = kBytes * 3 / 4;

TEST(ByteBudgetTest, LargeOnesLeaveAQuarterToTheSmall) {
  ByteBudget budget(kBytes);
  EXPECT_EQ(budget.small_bytes(), kSmall);
  EXPECT_EQ(budget.most_bytes(), kMost);
  EXPECT_FALSE(budget.try_reserve(kMost + 1));
  const auto large = budget.try_reserve(kMost - kSmall);
  ASSERT_TRUE(large);
  EXPECT_FALSE(budget.try_reserve(kSmall + 1)) << "large, and large ones have their share";
  std::vector<ByteReservation> small;
  while (auto one = budget.try_reserve(kSmall)) small.push_back(std::move(*one));
  EXPECT_EQ(small.size(), 65u);
  EXPECT_EQ(budget.used_bytes(), kBytes);
}

TEST(ByteBudgetTest, ASmallOneThatGrowsBecomesLarge) {
  ByteBudget budget(kBytes);
  ByteReservation large = *budget.try_reserve(kMost - kSmall / 2);
  ByteReservation small = *budget.try_reserve(kSmall);
  EXPECT_FALSE(small.grow_to(kSmall + 1));
  large.shrink_to(kMost - 800);
  EXPECT_TRUE(small.grow_to(800));
  EXPECT_FALSE(small.grow_to(801));
  small.shrink_to(kSmall / 2);
  EXPECT_TRUE(large.grow_to(kMost));
}

TEST(ByteBudgetTest, SmallOnesMayFillAllOfIt) {
  ByteBudget budget(kBytes);
  std::vector<ByteReservation> small;
  while (auto one = budget.try_reserve(kSmall)) small.push_back(std::move(*one));
  EXPECT_EQ(small.size(), 256u);
  EXPECT_FALSE(budget.try_reserve(1));
  EXPECT_TRUE(budget.try_reserve(0));
  small.pop_back();
  EXPECT_FALSE(budget.try_reserve(kSmall + 1)) << "no more than there is, whoever asks";
}

TEST(ByteBudgetTest, HugeNumbersDoNotWrapAround) {
  ByteBudget budget(1000);
  const auto some = budget.try_reserve(500);
  EXPECT_FALSE(budget.try_reserve(UINT64_MAX));
  EXPECT_FALSE(budget.try_reserve(UINT64_MAX - 499));
}

TEST(ByteBudgetTest, WhoWaitsGetsWhatIsFreed) {
  ByteBudget budget(1000);
  std::optional<ByteReservation> first = budget.try_reserve(700);
  std::atomic<bool> has_it{false};
  std::thread other([&] {
    const ByteReservation waited = budget.reserve(600);
    has_it = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_it);
  first.reset();
  other.join();
  EXPECT_TRUE(has_it);
  EXPECT_EQ(budget.used_bytes(), 0u);
}

// Threads of reservations that come, grow, shrink and go: never more than there is, and nothing left at the end.
TEST(ByteBudgetTest, ManyThreadsNeverHaveMoreThanThereIs) {
  ByteBudget budget(kBytes);
  std::atomic<uint64_t> held{0};
  std::atomic<bool> is_exceeded{false};
  const uint64_t seed = test_seed();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int i = 0; i < 20'000; ++i) {
        auto one = budget.try_reserve(random() % 10'000);
        if (!one) continue;
        if ((held += one->bytes()) > kBytes) is_exceeded = true;
        const uint64_t before = one->bytes();
        if (one->grow_to(before + random() % 2'000) && (held += one->bytes() - before) > kBytes) is_exceeded = true;
        held -= one->bytes();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(is_exceeded);
  EXPECT_EQ(budget.used_bytes(), 0u);
}

}  // namespace
}  // namespace pagoda
