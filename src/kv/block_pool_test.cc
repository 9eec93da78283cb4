#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/test_seed.h"

namespace pagoda::kv {
namespace {

#define ASSERT_SOUND(object)                       \
  do {                                             \
    const Status sound_ = (object);                \
    ASSERT_TRUE(sound_) << sound_.error().message; \
  } while (0)

uint64_t sum(const PoolStats& stats) {
  return stats.live_bytes + stats.cached_bytes + stats.free_bytes + stats.overhead_bytes;
}

TEST(BlockPoolTest, AccountsForEveryByte) {
  BlockPool pool({.budget_bytes = 1050, .extent_bytes = 200});  // 5 extents, 50 left over
  const ClassId small = pool.add_class(60), large = pool.add_class(200);
  EXPECT_EQ(pool.stats().overhead_bytes, 50u);
  EXPECT_EQ(pool.stats().free_extents, 5u);
  const BlockId a = *pool.allocate(small);
  EXPECT_EQ(pool.stats().live_bytes, 60u);
  EXPECT_EQ(pool.stats().overhead_bytes, 50u + 20u);  // the extent's tail
  const BlockId b = *pool.allocate(large);
  EXPECT_EQ(pool.stats().live_blocks, 2u);
  EXPECT_EQ(sum(pool.stats()), 1050u);
  pool.unref(a);
  pool.unref(b);
  EXPECT_EQ(pool.stats().live_bytes, 0u);
  EXPECT_EQ(pool.stats().free_bytes, 1000u);
  ASSERT_SOUND(pool.check_integrity());
}

TEST(BlockPoolTest, EmptyExtentsMoveBetweenClasses) {
  BlockPool pool({.budget_bytes = 400, .extent_bytes = 200});
  const ClassId small = pool.add_class(100), large = pool.add_class(150);
  EXPECT_EQ(pool.used_extents(), 0U);
  const std::vector<BlockId> blocks{*pool.allocate(small), *pool.allocate(small), *pool.allocate(small)};
  EXPECT_EQ(pool.used_extents(), 2U);
  EXPECT_FALSE(pool.allocate(large));  // one free slot, of the other class
  const BlockNeed need{large, 1};
  EXPECT_EQ(pool.missing_bytes({&need, 1}), 200u);
  pool.unref(blocks[0]);
  EXPECT_FALSE(pool.allocate(large));
  pool.unref(blocks[1]);
  EXPECT_EQ(pool.missing_bytes({&need, 1}), 0u);
  const BlockId moved = *pool.allocate(large);
  EXPECT_EQ(moved.extent(), blocks[0].extent());
  EXPECT_EQ(pool.class_of(moved), large);
  pool.unref(moved);
  pool.unref(blocks[2]);
  EXPECT_EQ(pool.used_extents(), 2U);  // ever
}

TEST(BlockPoolTest, NeedsCountPartlyUsedExtents) {
  BlockPool pool({.budget_bytes = 900, .extent_bytes = 300});
  const ClassId small = pool.add_class(100), large = pool.add_class(300);
  const BlockId block = *pool.allocate(small);  // two free slots, two empty extents
  const std::vector<BlockNeed> fits{{small, 5}, {large, 1}}, too_much{{small, 6}, {large, 1}};
  EXPECT_EQ(pool.missing_bytes(fits), 0u);
  EXPECT_EQ(pool.missing_bytes(too_much), 300u);
  EXPECT_TRUE(pool.could_hold(too_much));
  EXPECT_FALSE(pool.could_hold(std::vector<BlockNeed>{{small, 7}, {large, 1}}));
  pool.unref(block);
}

TEST(BlockPoolTest, SharedBlockIsFreeWithItsLastHolder) {
  BlockPool pool({.budget_bytes = 100, .extent_bytes = 100});
  const ClassId size_class = pool.add_class(100);
  const BlockId block = *pool.allocate(size_class);
  EXPECT_EQ(pool.state(block), BlockState::kOpen);
  pool.seal(block);
  EXPECT_EQ(pool.state(block), BlockState::kSealed);
  pool.ref(block);
  pool.unref(block);
  EXPECT_EQ(pool.state(block), BlockState::kSealed);
  EXPECT_FALSE(pool.allocate(size_class));
  pool.unref(block);
  EXPECT_EQ(pool.state(block), BlockState::kFree);
  ASSERT_SOUND(pool.check_integrity());
}

TEST(BlockPoolTest, AKeptBlockIsCachedUntilEvicted) {
  BlockPool pool({.budget_bytes = 200, .extent_bytes = 200});
  const ClassId size_class = pool.add_class(100), other = pool.add_class(200);
  const BlockId block = *pool.allocate(size_class);
  pool.seal(block);
  pool.keep(block, 7);
  pool.unref(block);
  EXPECT_EQ(pool.state(block), BlockState::kCached);
  EXPECT_EQ(pool.keeper(block), 7u);
  EXPECT_EQ(pool.stats().live_bytes, 0u);
  EXPECT_EQ(pool.stats().cached_bytes, 100u);
  EXPECT_FALSE(pool.allocate(other));  // its extent is still the class's
  const BlockNeed need{other, 1};
  EXPECT_EQ(pool.missing_bytes({&need, 1}), 200u);
  EXPECT_EQ(pool.missing_bytes_without_cached({&need, 1}), 0u);
  ASSERT_TRUE(pool.oldest_idle_extent(size_class));
  pool.ref(block);
  EXPECT_EQ(pool.state(block), BlockState::kSealed);
  EXPECT_FALSE(pool.oldest_idle_extent(size_class));
  EXPECT_EQ(pool.missing_bytes_without_cached({&need, 1}), 200u);
  pool.unref(block);
  ASSERT_SOUND(pool.check_integrity());
  pool.evict(block);
  EXPECT_EQ(pool.state(block), BlockState::kFree);
  EXPECT_EQ(pool.stats().free_extents, 1u);
  ASSERT_SOUND(pool.check_integrity());
}

TEST(BlockPoolTest, IdleExtentsComeOldestFirst) {
  BlockPool pool({.budget_bytes = 600, .extent_bytes = 200});
  const ClassId size_class = pool.add_class(100);
  std::vector<BlockId> blocks;
  for (uint32_t i = 0; i < 6; ++i) {
    blocks.push_back(*pool.allocate(size_class));
    pool.seal(blocks.back());
    pool.keep(blocks.back(), i);
  }
  for (const size_t i : {4, 0, 1, 5, 2}) pool.unref(blocks[i]);
  ASSERT_TRUE(pool.oldest_idle_extent(size_class));
  EXPECT_EQ(pool.oldest_idle_extent(size_class)->extent, blocks[0].extent());
  std::vector<BlockId> cached;
  pool.list_cached(blocks[0].extent(), cached);
  EXPECT_EQ(cached, (std::vector{blocks[0], blocks[1]}));
  pool.ref(blocks[1]);
  EXPECT_EQ(pool.oldest_idle_extent(size_class)->extent, blocks[4].extent());
  pool.unref(blocks[1]);
  pool.evict(blocks[4]);
  pool.evict(blocks[5]);
  EXPECT_EQ(pool.oldest_idle_extent(size_class)->extent, blocks[0].extent());
  pool.unref(blocks[3]);
  ASSERT_SOUND(pool.check_integrity());
}

TEST(BlockPoolTest, BudgetBelowOneExtentHoldsNothing) {
  BlockPool pool({.budget_bytes = 99, .extent_bytes = 100});
  const ClassId size_class = pool.add_class(10);
  EXPECT_FALSE(pool.allocate(size_class));
  EXPECT_EQ(pool.stats().overhead_bytes, 99u);
  ASSERT_SOUND(pool.check_integrity());
}

TEST(BlockPoolDeathTest, MisuseAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  BlockPool pool({.budget_bytes = 300, .extent_bytes = 300});
  const ClassId size_class = pool.add_class(100);
  const BlockId block = *pool.allocate(size_class);
  const BlockId other = *pool.allocate(size_class);
  EXPECT_DEATH(pool.ref(block), "kSealed");  // an open block has one writer
  pool.unref(block);
  EXPECT_DEATH(pool.unref(block), "refs > 0");  // double release
  pool.unref(other);
}

// Random operations against a map of holders, whose extents tell what the pool must be able to serve.
void run_random_operations(int n_steps) {
  const unsigned seed = test_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const size_t budget = 4000 + random() % 100;
  BlockPool pool({.budget_bytes = budget, .extent_bytes = 256});
  const std::vector<size_t> sizes{16, 60, 200};
  const std::vector<ClassId> classes{pool.add_class(16), pool.add_class(60), pool.add_class(200)};
  struct Held {
    BlockId block;
    size_t size_class;
    uint32_t refs;  // 0: cached
    bool sealed;
    bool kept = false;
  };
  std::vector<Held> held;
  for (int step = 0; step < n_steps; ++step) {
    const unsigned op = random() % 8;
    if (op < 4) {
      const size_t c = random() % classes.size();
      std::map<uint32_t, size_t> live_in;  // extent -> blocks
      size_t room = 0;
      for (const Held& h : held) ++live_in[h.block.extent()];
      for (const auto& [extent, n] : live_in) {
        if (pool.class_of(BlockId::at(extent, 0)) == classes[c]) room += 256 / sizes[c] - n;
      }
      const bool expected = room > 0 || live_in.size() < budget / 256;
      const std::optional<BlockId> block = pool.allocate(classes[c]);
      ASSERT_EQ(block.has_value(), expected);
      if (block) held.push_back({*block, c, 1, false});
    } else if (!held.empty()) {
      const size_t i = random() % held.size();
      Held& h = held[i];
      if (op == 4 && !h.sealed) {
        pool.seal(h.block);
        h.sealed = true;
      } else if (op == 4 && !h.kept && h.refs > 0 && random() % 2) {
        pool.keep(h.block, static_cast<uint32_t>(step));
        h.kept = true;
      } else if (h.refs == 0 && op >= 6) {
        pool.evict(h.block);
        held.erase(held.begin() + static_cast<ptrdiff_t>(i));
      } else if (op == 5 && h.sealed) {
        pool.ref(h.block);
        ++h.refs;
      } else if (op >= 6 || step % 1000 > 700) {
        if (h.refs == 0) continue;
        pool.unref(h.block);
        if (--h.refs == 0 && !h.kept) held.erase(held.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    size_t live_bytes = 0, cached_bytes = 0;
    std::set<uint32_t> ids;
    for (const Held& h : held) {
      (h.refs > 0 ? live_bytes : cached_bytes) += sizes[h.size_class];
      ids.insert(h.block.value);
      ASSERT_EQ(pool.refs(h.block), h.refs);
    }
    ASSERT_EQ(ids.size(), held.size());  // nobody's block is dealt twice
    ASSERT_EQ(pool.stats().live_bytes, live_bytes);
    ASSERT_EQ(pool.stats().cached_bytes, cached_bytes);
    ASSERT_EQ(sum(pool.stats()), budget);
    ASSERT_SOUND(pool.check_integrity());
  }
  for (const Held& h : held) {
    for (uint32_t i = 0; i < h.refs; ++i) pool.unref(h.block);
  }
  EXPECT_EQ(pool.stats().live_blocks, 0u);
}

TEST(BlockPoolTest, RandomOperations) { run_random_operations(20'000); }

TEST(BlockPoolTest, DISABLED_AMillionSteps) { run_random_operations(1'000'000); }

TEST(BlockPoolTest, StatsAddUpSeenFromAnotherThread) {
  BlockPool pool({.budget_bytes = 10000, .extent_bytes = 300});
  const ClassId size_class = pool.add_class(70);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) ASSERT_EQ(sum(pool.stats()), 10000u);
  });
  std::vector<BlockId> blocks;
  for (int round = 0; round < 200; ++round) {
    while (const std::optional<BlockId> block = pool.allocate(size_class)) blocks.push_back(*block);
    for (const BlockId block : blocks) pool.unref(block);
    blocks.clear();
  }
  done.store(true);
  reader.join();
}

TEST(ChooseExtentTest, WastesLittle) {
  constexpr size_t kMiB = size_t{1} << 20;
  const size_t smol = 30 * 3 * 32 * 132;
  EXPECT_EQ(choose_extent_bytes(std::vector<size_t>{smol}), 4 * kMiB);  // 11 blocks; 2 MiB would lose 9 %
  EXPECT_EQ(choose_extent_bytes(std::vector<size_t>{4 * kMiB}), 4 * kMiB);
  EXPECT_EQ(choose_extent_bytes(std::vector<size_t>{200 * kMiB + 1}), 202 * kMiB);
  EXPECT_EQ(choose_extent_bytes(std::vector<size_t>{1024}), 2 * kMiB);
  for (const size_t bytes : {50688u, 253440u, 380160u, 1100000u, 2162688u}) {
    const size_t extent = choose_extent_bytes(std::vector<size_t>{bytes});
    EXPECT_LE(static_cast<double>(extent % bytes) / static_cast<double>(extent), 0.02) << bytes;
    EXPECT_EQ(extent % (2 * kMiB), 0u);
  }
}

}  // namespace
}  // namespace pagoda::kv
