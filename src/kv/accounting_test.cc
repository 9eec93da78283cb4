#include "kv/accounting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kv/test_prefix_world.h"

namespace pagoda::kv {
namespace {

const std::vector<std::vector<GroupSpec>> kTwoModels{{{.block_bytes = 256}, {.block_bytes = 320, .window_tokens = 80}},
                                                     {{.block_bytes = 512}}};

std::vector<const Cache*> caches_of(const PrefixWorld& w) {
  std::vector<const Cache*> caches;
  for (const auto& cache : w.caches) caches.push_back(cache.get());
  return caches;
}
Account account_of(const PrefixWorld& w, std::span<const KvLease* const> leases) {
  return account_of(w.pool, caches_of(w), leases);
}

// The sums that must hold at any moment.
void check_sums(const Account& account) {
  const PoolStats& pool = account.pool;
  ASSERT_EQ(pool.live_bytes + pool.cached_bytes + pool.free_bytes + pool.overhead_bytes, pool.budget_bytes);
  uint64_t live = 0, cached = 0, stranded = 0;
  for (const ModelAccount& model : account.models) {
    for (const GroupAccount& group : model.groups) {
      live += group.live_blocks * group.block_bytes;
      cached += group.cached_blocks * group.block_bytes;
      stranded += group.free_blocks * group.block_bytes;
      ASSERT_EQ(group.stored_tokens + group.reserved_tokens + group.wasted_tokens, group.live_blocks * kBlockTokens);
      ASSERT_LE(group.stored_tokens, group.logical_tokens);
    }
  }
  ASSERT_EQ(live, pool.live_bytes);
  ASSERT_EQ(cached, pool.cached_bytes);
  ASSERT_EQ(stranded + pool.free_extents * account.extent_bytes, pool.free_bytes);
  ASSERT_EQ(sum_bytes(account, &GroupAccount::stored_tokens) + sum_bytes(account, &GroupAccount::reserved_tokens) +
                sum_bytes(account, &GroupAccount::wasted_tokens),
            pool.live_bytes);
}

TEST(AccountingTest, CountsSlotsAndSharing) {
  PrefixWorld w(16, kOneGroup);
  const std::vector<TokenId> tokens = salted_tokens(100);
  KvLease first(ModelId(0), {}), second(ModelId(0), {});
  w.compute(first, tokens);
  w.compute(second, branch_of(tokens, 64, 70, 1));
  w.must_admit(second, branch_of(tokens, 64, 73, 1), 3);  // not committed
  const Account account = account_of(w, std::vector<const KvLease*>{&first, &second});
  check_sums(account);
  const GroupAccount& group = account.models[0].groups[0];
  EXPECT_EQ(group.live_blocks, 5u);
  EXPECT_EQ(group.logical_tokens, 170u);
  EXPECT_EQ(group.stored_tokens, 106u);
  EXPECT_EQ(group.reserved_tokens, 3u);
  EXPECT_EQ(group.wasted_tokens, 28u + 23u);
  EXPECT_EQ(group.free_blocks, 3u);  // of two extents of four
  EXPECT_EQ(account.index->nodes, 4u);
  EXPECT_FALSE(account.reuse);
  w.release(first);
  w.release(second);
  const Account idle = account_of(w, {});
  check_sums(idle);
  EXPECT_EQ(idle.models[0].groups[0].cached_blocks, 3u);
  EXPECT_EQ(idle.models[0].groups[0].logical_tokens, 0u);
}

// Against a count of the distinct blocks that leases name.
TEST(AccountingTest, SumsHoldUnderRandomLoad) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::minstd_rand random(seed);
  PrefixWorld w(24, kTwoModels);
  std::vector<std::unique_ptr<KvLease>> leases;
  std::vector<std::vector<TokenId>> tokens;
  for (int step = 0; step < 2000; ++step) {
    const size_t i = random() % 8;
    if (i >= leases.size()) {
      leases.push_back(std::make_unique<KvLease>(ModelId(random() % 2), CacheNamespace{}));
      leases.back()->patience = Patience::kNever;
      tokens.push_back(branch_of(salted_tokens(300, static_cast<int>(random() % 3)), random() % 300, 400,
                                 static_cast<int>(random() % 4)));
    } else if (random() % 4 == 0) {
      w.release(*leases[i]);
      leases.erase(leases.begin() + static_cast<ptrdiff_t>(i));
      tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(i));
    } else if (leases[i]->n_written() < 400) {
      (void)w.admit(*leases[i], tokens[i], 1 + static_cast<int>(random() % 60));
      if (random() % 3 != 0) w.commit(*leases[i]);
    }
    std::vector<const KvLease*> holders;
    for (const auto& lease : leases) holders.push_back(lease.get());
    const Account account = account_of(w, holders);
    check_sums(account);
    if (HasFatalFailure()) return;
    std::map<std::pair<uint32_t, uint32_t>, std::set<uint32_t>> distinct;
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> logical;
    for (const KvLease* lease : holders) {
      for (uint32_t g = 0; g < w.cache_of(*lease).n_groups(); ++g) {
        const auto blocks = lease->blocks(GroupId(g));
        for (size_t b = 0; b < blocks.size(); ++b) {
          if (blocks[b].is_none()) continue;
          const auto n_tokens = std::clamp<int64_t>(lease->n_committed() - static_cast<int64_t>(b) * 32, 0, 32);
          logical[{lease->model().value, g}] += static_cast<uint64_t>(n_tokens);
          distinct[{lease->model().value, g}].insert(blocks[b].value);
        }
      }
    }
    for (const ModelAccount& model : account.models) {
      for (uint32_t g = 0; g < model.groups.size(); ++g) {
        ASSERT_EQ(model.groups[g].live_blocks, (distinct[{model.model.value, g}].size()));
        ASSERT_EQ(model.groups[g].logical_tokens, (logical[{model.model.value, g}]));
      }
    }
  }
  for (auto& lease : leases) w.release(*lease);
}

TEST(AccountingTest, TheMapShowsEveryBlockOnce) {
  PrefixWorld w(24, kTwoModels);
  const std::vector<TokenId> tokens = salted_tokens(150);
  KvLease first(ModelId(0), {}), second(ModelId(0), {}), other(ModelId(1), {});
  w.compute(first, tokens);
  w.compute(second, branch_of(tokens, 128, 150, 1));
  w.compute(other, tokens);
  w.release(other);
  const BlockMapPage map = block_map_page(w.pool, caches_of(w), 0);
  EXPECT_EQ(map.n_pages, 1u);
  EXPECT_EQ(map.n_extents, 24u);
  std::map<BlockState, uint64_t> counts;
  uint64_t n_holders = 0;
  for (const ExtentView& extent : map.extents) {
    EXPECT_EQ(extent.slots.size(), 1024 / w.caches[extent.model.value]->group(extent.group).block_bytes);
    for (const SlotView& slot : extent.slots) {
      ++counts[slot.state];
      n_holders += slot.n_holders;
    }
  }
  EXPECT_EQ(counts[BlockState::kOpen] + counts[BlockState::kSealed], w.live_blocks());
  EXPECT_EQ(counts[BlockState::kOpen], 4u);  // one of each lease and group
  EXPECT_EQ(counts[BlockState::kCached], w.cached_blocks());
  EXPECT_EQ(n_holders, 2u * (5 + 3));  // the window group dropped two
  EXPECT_EQ(map.extents.size(), 24 - w.pool.stats().free_extents);
  EXPECT_TRUE(block_map_page(w.pool, caches_of(w), 1).extents.empty());
  w.release(first);
  w.release(second);
}

TEST(AccountingTest, PagesAreBoundedAndCoverTheArena) {
  BlockPool pool({.budget_bytes = 1000 * 1024, .extent_bytes = 1024});
  Cache cache(pool, ModelId(0), std::vector<GroupSpec>{{.block_bytes = 64}});
  const Cache* const caches[] = {&cache};
  std::vector<BlockOp> ops;
  KvLease lease(ModelId(0), {});
  const std::vector<TokenId> tokens(16 * 1000 * 32);
  ASSERT_TRUE(std::holds_alternative<Granted>(cache.admit(lease, tokens, static_cast<int32_t>(tokens.size()), ops)));
  const uint64_t n_pages = block_map_page(pool, caches, 0).n_pages;
  EXPECT_EQ(n_pages, 4u);
  uint32_t next = 0;
  size_t n_open = 0;
  for (uint64_t page = 0; page < n_pages; ++page) {
    const BlockMapPage map = block_map_page(pool, caches, page);
    EXPECT_EQ(map.first_extent, next);
    next += map.n_extents;
    size_t n_slots = 0;
    for (const ExtentView& extent : map.extents) n_slots += extent.slots.size();
    EXPECT_LE(n_slots, kMapSlots);
    n_open += n_slots;
  }
  EXPECT_EQ(next, 1000u);
  EXPECT_EQ(n_open, 16000u);
  EXPECT_TRUE(block_map_page(pool, caches, ~uint64_t{0}).extents.empty());
  cache.release(lease);
}

}  // namespace
}  // namespace pagoda::kv
