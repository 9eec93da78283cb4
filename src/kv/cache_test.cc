#include "kv/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace pagoda::kv {
namespace {

#define ASSERT_SOUND(object)                       \
  do {                                             \
    const Status sound_ = (object);                \
    ASSERT_TRUE(sound_) << sound_.error().message; \
  } while (0)

constexpr ModelId kModel{7};
constexpr GroupId kGlobal{0}, kLocal{1};

std::vector<TokenId> some_tokens(int n) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(TokenId(i * 31 % 1009));
  return tokens;
}

bool is_granted(const Admission& admission) { return std::holds_alternative<Granted>(admission); }

size_t n_held(const KvLease& lease, GroupId group) {
  return static_cast<size_t>(std::ranges::count_if(lease.blocks(group), [](BlockId b) { return !b.is_none(); }));
}

// One full-attention group; extents of 4 blocks.
struct OneGroup {
  explicit OneGroup(size_t n_blocks) : pool({.budget_bytes = n_blocks * 64, .extent_bytes = 256}) {}
  BlockPool pool;
  Cache cache{pool, kModel, std::vector<GroupSpec>{{.block_bytes = 64}}};
  std::vector<BlockOp> ops;
  std::vector<TokenId> tokens = some_tokens(5000);
};

TEST(CacheTest, AdmitOpensZeroedBlocksAndCommitSealsFullOnes) {
  OneGroup f(16);
  KvLease lease(kModel, {});
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 33, f.ops)));
  EXPECT_EQ(lease.n_written(), 33);
  EXPECT_EQ(lease.n_committed(), 0);
  const std::span<const BlockId> blocks = lease.blocks(kGlobal);
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(f.ops,
            (std::vector<BlockOp>{{BlockOpKind::kZero, kGlobal, blocks[0]}, {BlockOpKind::kZero, kGlobal, blocks[1]}}));
  f.cache.commit(lease, 31);
  EXPECT_EQ(f.pool.state(blocks[0]), BlockState::kOpen);
  f.cache.commit(lease, 2);
  EXPECT_EQ(f.pool.state(blocks[0]), BlockState::kSealed);
  EXPECT_EQ(f.pool.state(blocks[1]), BlockState::kOpen);
  f.ops.clear();
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 31, f.ops)));
  EXPECT_TRUE(f.ops.empty());  // the second block had room
  EXPECT_TRUE(std::ranges::equal(lease.token_ids(), std::span(f.tokens).first(64)));
  f.cache.release(lease);
  EXPECT_FALSE(lease.holds_blocks());
  EXPECT_EQ(f.pool.stats().live_blocks, 0u);
}

TEST(CacheTest, NoSpaceLeavesNoTrace) {
  OneGroup f(8);
  KvLease lease(kModel, {}), other(kModel, {});
  ASSERT_TRUE(is_granted(f.cache.admit(other, f.tokens, 100, f.ops)));
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 64, f.ops)));
  f.cache.commit(lease, 64);
  const size_t n_ops = f.ops.size();
  const Admission answer = f.cache.admit(lease, f.tokens, 65, f.ops);
  ASSERT_TRUE(std::holds_alternative<NoSpace>(answer));
  EXPECT_EQ(std::get<NoSpace>(answer).bytes, 256u);
  EXPECT_EQ(f.ops.size(), n_ops);
  EXPECT_EQ(lease.n_written(), 64);
  EXPECT_EQ(lease.blocks(kGlobal).size(), 2u);
  EXPECT_EQ(f.pool.stats().live_blocks, 6u);
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 64, f.ops)));
  const std::vector<const KvLease*> leases{&lease, &other};
  ASSERT_SOUND(f.cache.check_integrity(leases));
  f.cache.release(lease);
  f.cache.release(other);
}

TEST(CacheTest, AllGroupsOrNone) {
  BlockPool pool({.budget_bytes = 300, .extent_bytes = 100});
  Cache cache(pool, kModel, std::vector<GroupSpec>{{.block_bytes = 50}, {.block_bytes = 100}});
  std::vector<BlockOp> ops;
  const std::vector<TokenId> tokens = some_tokens(200);
  KvLease lease(kModel, {});
  ASSERT_TRUE(std::holds_alternative<NoSpace>(cache.admit(lease, tokens, 96, ops)));  // 2 extents and 3
  EXPECT_EQ(pool.stats().live_blocks, 0u);
  ASSERT_TRUE(is_granted(cache.admit(lease, tokens, 64, ops)));  // 1 and 2
  EXPECT_EQ(cache.capacity_tokens(), 64);
  cache.release(lease);
}

TEST(CacheTest, RollbackReturnsBlocksLeftEmpty) {
  OneGroup f(16);
  KvLease lease(kModel, {});
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 100, f.ops)));
  f.cache.commit(lease, 30);
  f.cache.rollback(lease, 68);
  EXPECT_EQ(lease.n_written(), 32);
  EXPECT_EQ(lease.blocks(kGlobal).size(), 1u);
  EXPECT_EQ(f.pool.stats().live_blocks, 1u);
  f.cache.rollback(lease, 2);
  EXPECT_EQ(lease.blocks(kGlobal).size(), 1u);
  f.tokens[30] = TokenId(5);  // another draft
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 3, f.ops)));
  EXPECT_EQ(lease.token_ids()[30], TokenId(5));
  f.cache.release(lease);
}

TEST(CacheTest, WindowGroupDropsWhatNoQuerySees) {
  constexpr int32_t kWindow = 48;
  BlockPool pool({.budget_bytes = 1 << 16, .extent_bytes = 256});
  Cache cache(pool, kModel, std::vector<GroupSpec>{{.block_bytes = 64}, {.block_bytes = 32, .window_tokens = kWindow}});
  std::vector<BlockOp> ops;
  const std::vector<TokenId> tokens = some_tokens(400);
  KvLease lease(kModel, {});
  for (int32_t p = 0; p < 400; ++p) {
    for (int32_t t = std::max(0, p - kWindow + 1); t < p; ++t) {  // what the query at p sees is there
      ASSERT_FALSE(lease.blocks(kLocal)[static_cast<size_t>(t / kBlockTokens)].is_none()) << p << " sees " << t;
    }
    ASSERT_TRUE(is_granted(cache.admit(lease, tokens, 1, ops)));
    cache.commit(lease, 1);
    const int32_t first_seen = std::max(0, p + 1 - kWindow + 1);
    ASSERT_EQ(n_held(lease, kLocal), blocks_for(p + 1) - static_cast<size_t>(first_seen / kBlockTokens)) << p;
    ASSERT_EQ(n_held(lease, kGlobal), blocks_for(p + 1));
  }
  EXPECT_TRUE(lease.blocks(kLocal)[0].is_none());
  cache.release(lease);
  EXPECT_EQ(pool.stats().live_blocks, 0u);
}

TEST(CacheTest, CapacityIsWhatASequenceCanReachAlone) {
  for (const int n_extents : {0, 1, 2, 3, 5, 9, 17}) {
    for (const int32_t window : {0, 1, 33, 64, 100}) {
      BlockPool pool({.budget_bytes = static_cast<size_t>(n_extents) * 256 + 17, .extent_bytes = 256});
      Cache cache(pool, kModel,
                  std::vector<GroupSpec>{{.block_bytes = 64}, {.block_bytes = 48, .window_tokens = window}});
      const std::vector<TokenId> tokens = some_tokens(cache.capacity_tokens() + 1);
      std::vector<BlockOp> ops;
      KvLease lease(kModel, {});
      for (int32_t p = 0; p < cache.capacity_tokens(); ++p) {
        ASSERT_TRUE(is_granted(cache.admit(lease, tokens, 1, ops))) << n_extents << " " << window << " at " << p;
        cache.commit(lease, 1);
      }
      EXPECT_TRUE(window != 0 || !is_granted(cache.admit(lease, tokens, 1, ops)));
      cache.release(lease);
    }
  }
}

TEST(CacheTest, HasRoomKeepsSpareBlocks) {
  OneGroup f(8);
  KvLease lease(kModel, {});
  EXPECT_TRUE(f.cache.has_room(lease, std::span(f.tokens).first(256), 256, 0));
  EXPECT_FALSE(f.cache.has_room(lease, std::span(f.tokens).first(257), 256, 0));
  EXPECT_TRUE(f.cache.has_room(lease, std::span(f.tokens).first(192), 32, 2));
  EXPECT_FALSE(f.cache.has_room(lease, std::span(f.tokens).first(193), 32, 2));
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 64, f.ops)));
  EXPECT_TRUE(f.cache.has_room(lease, std::span(f.tokens).first(256), 256, 0));  // what it holds counts
  f.cache.release(lease);
}

TEST(CacheDeathTest, LeakedLeaseAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  OneGroup f(8);
  EXPECT_DEATH(
      {
        KvLease lease(kModel, {});
        (void)f.cache.admit(lease, f.tokens, 1, f.ops);
      },
      "holds_blocks");
}

TEST(LeaseTest, MovesItsHold) {
  OneGroup f(8);
  KvLease lease(kModel, {});
  ASSERT_TRUE(is_granted(f.cache.admit(lease, f.tokens, 40, f.ops)));
  f.cache.commit(lease, 40);
  KvLease moved(std::move(lease));
  EXPECT_FALSE(lease.holds_blocks());
  EXPECT_EQ(lease.n_committed(), 0);
  EXPECT_EQ(moved.n_committed(), 40);
  EXPECT_EQ(moved.blocks(kGlobal).size(), 2u);
  f.cache.release(moved);
}

// What the pool must answer, told from the leases alone: extents in use per class, and the free slots in them.
struct Naive {
  struct Class {
    size_t n_slots;
    std::map<uint32_t, size_t> live_in;  // extent -> blocks
  };
  std::vector<Class> classes;
  size_t n_extents;

  bool can_serve(const std::vector<size_t>& needs) const {
    size_t used = 0, wanted = 0;
    for (size_t c = 0; c < classes.size(); ++c) {
      size_t room = 0;
      for (const auto& [extent, n] : classes[c].live_in) room += classes[c].n_slots - n;
      used += classes[c].live_in.size();
      if (needs[c] > room) wanted += (needs[c] - room + classes[c].n_slots - 1) / classes[c].n_slots;
    }
    return used + wanted <= n_extents;
  }
};

struct TwoModels {
  static constexpr size_t kExtent = 512;
  explicit TwoModels(size_t n_extents) : pool({.budget_bytes = n_extents * kExtent + 100, .extent_bytes = kExtent}) {
    specs = {{{.block_bytes = 64}, {.block_bytes = 100, .window_tokens = 70}}, {{.block_bytes = 130}}};
    for (uint32_t m = 0; m < specs.size(); ++m) caches.push_back(std::make_unique<Cache>(pool, ModelId(m), specs[m]));
  }
  BlockPool pool;
  std::vector<std::vector<GroupSpec>> specs;
  std::vector<std::unique_ptr<Cache>> caches;

  // `leases`: those of both models.
  Naive naive(const std::vector<std::unique_ptr<KvLease>>& leases) const {
    Naive result{.classes = {}, .n_extents = pool.n_extents()};
    for (uint32_t m = 0; m < specs.size(); ++m) {
      for (uint32_t g = 0; g < specs[m].size(); ++g) {
        Naive::Class c{.n_slots = kExtent / specs[m][g].block_bytes, .live_in = {}};
        for (const auto& lease : leases) {
          if (lease->model() != ModelId(m)) continue;
          for (const BlockId block : lease->blocks(GroupId(g))) {
            if (!block.is_none()) ++c.live_in[block.extent()];
          }
        }
        result.classes.push_back(c);
      }
    }
    return result;
  }
};

class CacheRandomTest : public testing::Test {
 protected:
  const unsigned seed_ = std::random_device{}();
  std::mt19937 random_{seed_};
  TwoModels f_{8 + random_() % 20};
  std::vector<std::unique_ptr<KvLease>> leases_;
  std::vector<BlockOp> ops_;
  std::vector<TokenId> tokens_ = some_tokens(4000);

  Cache& cache_of(const KvLease& lease) { return *f_.caches[lease.model().value]; }

  void admit(KvLease& lease) {
    const int32_t n_new = 1 + static_cast<int32_t>(random_() % 90);
    const Naive naive = f_.naive(leases_);
    const size_t n_blocks = blocks_for(lease.n_written() + n_new);
    std::vector<size_t> needs(3);
    for (uint32_t g = 0; g < f_.specs[lease.model().value].size(); ++g) {
      needs[lease.model().value * 2 + g] = n_blocks - lease.blocks(GroupId(g)).size();
    }
    const int32_t n_before = lease.n_written();
    const uint64_t live_before = f_.pool.stats().live_bytes;
    ops_.clear();
    const bool granted = is_granted(cache_of(lease).admit(lease, tokens_, n_new, ops_));
    ASSERT_EQ(granted, naive.can_serve(needs));
    ASSERT_EQ(lease.n_written(), granted ? n_before + n_new : n_before);
    ASSERT_EQ(ops_.size(), granted ? needs[0] + needs[1] + needs[2] : 0);
    ASSERT_TRUE(granted || f_.pool.stats().live_bytes == live_before);
  }

  void check_lease(const KvLease& lease) {
    const std::vector<GroupSpec>& specs = f_.specs[lease.model().value];
    for (uint32_t g = 0; g < specs.size(); ++g) {
      const int32_t window = specs[g].window_tokens;
      const int32_t first_seen = window == 0 ? 0 : std::max(0, lease.n_committed() - window + 1);
      ASSERT_EQ(n_held(lease, GroupId(g)),
                blocks_for(lease.n_written()) - static_cast<size_t>(first_seen / kBlockTokens));
    }
  }

  void check_all() {
    for (uint32_t m = 0; m < 2; ++m) {
      std::vector<const KvLease*> of_model;
      for (const auto& lease : leases_) {
        if (lease->model() == ModelId(m)) of_model.push_back(lease.get());
        check_lease(*lease);
      }
      ASSERT_SOUND(f_.caches[m]->check_integrity(of_model));
    }
    const PoolStats stats = f_.pool.stats();
    ASSERT_EQ(stats.live_bytes + stats.cached_bytes + stats.free_bytes + stats.overhead_bytes, stats.budget_bytes);
  }
};

TEST_F(CacheRandomTest, RandomOperations) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  for (int step = 0; step < 6000; ++step) {
    const unsigned op = random_() % 16;
    if (leases_.size() < 2 || (op == 0 && leases_.size() < 12)) {
      leases_.push_back(std::make_unique<KvLease>(ModelId(random_() % 2), CacheNamespace{}));
      continue;
    }
    KvLease& lease = *leases_[random_() % leases_.size()];
    const int32_t n_open = lease.n_written() - lease.n_committed();
    if (op < 7) {
      if (lease.n_written() < 3900) admit(lease);
    } else if (op < 12) {
      cache_of(lease).commit(lease, static_cast<int32_t>(random_() % static_cast<unsigned>(n_open + 1)));
    } else if (op < 14) {
      cache_of(lease).rollback(lease, static_cast<int32_t>(random_() % static_cast<unsigned>(n_open + 1)));
    } else {
      cache_of(lease).release(lease);
    }
    if (HasFatalFailure()) break;
    check_all();
    if (HasFatalFailure()) break;
  }
  for (const auto& lease : leases_) cache_of(*lease).release(*lease);
  EXPECT_EQ(f_.pool.stats().live_blocks, 0u);
  EXPECT_EQ(f_.pool.stats().free_extents, f_.pool.n_extents());
}

}  // namespace
}  // namespace pagoda::kv
