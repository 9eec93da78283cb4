// PrefixWorld: caches with a prefix index over an arena whose "K and V" of a token are {position + 1, token}, so that what a lease would read
// can be compared with what it should. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kv/cache.h"
#include "kv/sessions.h"
#include "kv/tiering.h"

namespace pagoda::kv {

#define ASSERT_SOUND(object)                       \
  do {                                             \
    const Status sound_ = (object);                \
    ASSERT_TRUE(sound_) << sound_.error().message; \
  } while (0)

#define ASSERT_WITHIN_BUDGET(pool_stats)                                                           \
  do {                                                                                             \
    const PoolStats stats_ = (pool_stats);                                                         \
    ASSERT_LE(stats_.live_bytes + stats_.cached_bytes, stats_.budget_bytes);                       \
    ASSERT_EQ(stats_.live_bytes + stats_.cached_bytes + stats_.free_bytes + stats_.overhead_bytes, \
              stats_.budget_bytes);                                                                \
  } while (0)

inline constexpr size_t kSlotBytes = 8;  // a token's K and V: the smallest block has 256 bytes

// The arena of a PrefixWorld, for tiers.
class WorldIo final : public BlockIo {
 public:
  explicit WorldIo(std::vector<std::byte>& arena) : arena_(arena) {}
  void copy_out(ModelId, GroupId, BlockId block, std::span<std::byte> to) const override {
    std::memcpy(to.data(), at(block, to.size()), to.size());
  }
  void copy_in(ModelId, GroupId, BlockId block, std::span<const std::byte> from) override {
    std::memcpy(at(block, from.size()), from.data(), from.size());
  }
  uint32_t checksum(ModelId, GroupId, BlockId) const override { return 0; }

 private:
  std::byte* at(BlockId block, size_t bytes) const {
    return arena_.data() + block.extent() * 1024 + block.slot() * bytes;
  }
  std::vector<std::byte>& arena_;
};

enum class WithTiers { kNo, kYes };

// Small ones, for tests.
inline constexpr int64_t kTestTtlUs = 1'000'000;
inline constexpr size_t kTestSessions = 8;

struct PrefixWorld {
  // `models`: each one's groups. Extents of 1 KiB.
  PrefixWorld(size_t n_extents, const std::vector<std::vector<GroupSpec>>& models, PrefixTrie::HashFn hash = xxh3_128,
              WithTiers tiers = WithTiers::kNo, const TieringConfig& config = {}, SessionKeeper* keeper = nullptr)
      : pool({.budget_bytes = n_extents * 1024, .extent_bytes = 1024}),
        index(pool, 17, hash),
        arena(n_extents * 1024),
        io(arena) {
    if (tiers == WithTiers::kYes) tiering = std::make_unique<Tiering>(pool, index, io, clock, config);
    sessions = std::make_unique<Sessions>(SessionConfig{.index = &index,
                                                        .pool = &pool,
                                                        .clock = &clock,
                                                        .tiering = tiering.get(),
                                                        .keeper = keeper,
                                                        .ttl_us = kTestTtlUs,
                                                        .most_sessions = kTestSessions});
    for (uint32_t m = 0; m < models.size(); ++m) {
      caches.push_back(std::make_unique<Cache>(
          pool, ModelId(m), models[m],
          PrefixConfig{.index = &index, .clock = &clock, .tiering = tiering.get(), .sessions = sessions.get()}));
      if (tiering) tiering->set_identity(ModelId(m), Sha256{std::byte(m + 1)});
    }
  }

  Cache& cache_of(const KvLease& lease) { return *caches[lease.model().value]; }

  std::byte* slot(const Cache& cache, uint32_t group, BlockId block, int32_t position) {
    return arena.data() + block.extent() * 1024 + block.slot() * cache.group(GroupId(group)).block_bytes +
           static_cast<size_t>(position % kBlockTokens) * kSlotBytes;
  }

  void run(const Cache& cache, const BlockOp& op) {
    std::byte* to = slot(cache, op.group.value, op.block, 0);
    const std::byte* source = op.kind == BlockOpKind::kCopy ? slot(cache, op.group.value, op.source, 0) : to;
    ASSERT_TRUE(op.kind == BlockOpKind::kZero || to != source);
    std::memset(to, 0, cache.group(op.group).block_bytes);
    std::memcpy(to, source, static_cast<size_t>(op.n_tokens) * kSlotBytes);
  }

  // Admits, runs the ops and writes the granted rows.
  Admission admit(KvLease& lease, std::span<const TokenId> tokens, int32_t n_new) {
    ops.clear();
    const Admission answer = cache_of(lease).admit(lease, tokens, n_new, ops);
    for (const BlockOp& op : ops) run(cache_of(lease), op);
    if (!std::holds_alternative<Granted>(answer)) return answer;
    const Cache& cache = cache_of(lease);
    for (uint32_t g = 0; g < cache.n_groups(); ++g) {
      for (int32_t p = lease.n_committed(); p < lease.n_written(); ++p) {
        const int32_t stored[2] = {p + 1, tokens[static_cast<size_t>(p)].value};
        std::memcpy(slot(cache, g, lease.blocks(GroupId(g))[static_cast<size_t>(p / kBlockTokens)], p), stored,
                    sizeof(stored));
      }
    }
    return answer;
  }
  // Requires that it is granted.
  Granted must_admit(KvLease& lease, std::span<const TokenId> tokens, int32_t n_new) {
    const Admission answer = admit(lease, tokens, n_new);
    EXPECT_TRUE(std::holds_alternative<Granted>(answer));
    return std::holds_alternative<Granted>(answer) ? std::get<Granted>(answer) : Granted{};
  }
  void commit(KvLease& lease) { cache_of(lease).commit(lease, lease.n_written() - lease.n_committed()); }
  void release(KvLease& lease) { cache_of(lease).release(lease); }

  // Admits and commits all tokens at once.
  Granted compute(KvLease& lease, std::span<const TokenId> tokens) {
    const Granted granted = must_admit(lease, tokens, static_cast<int32_t>(tokens.size()) - lease.n_written());
    commit(lease);
    return granted;
  }
  // The same by a lease of its own, which then ends.
  Granted pass(std::span<const TokenId> tokens, CacheNamespace cache_namespace = {}, uint32_t model = 0) {
    KvLease lease(ModelId(model), cache_namespace);
    const Granted granted = compute(lease, tokens);
    check(lease);
    release(lease);
    return granted;
  }

  // What the lease's next query would see is what its tokens say.
  void check(const KvLease& lease) {
    const Cache& cache = cache_of(lease);
    for (uint32_t g = 0; g < cache.n_groups(); ++g) {
      const int32_t window = cache.group(GroupId(g)).window_tokens;
      const int32_t first = window == 0 ? 0 : std::max(0, lease.n_committed() - window + 1);
      for (int32_t p = first; p < lease.n_committed(); ++p) {
        const BlockId block = lease.blocks(GroupId(g))[static_cast<size_t>(p / kBlockTokens)];
        ASSERT_FALSE(block.is_none()) << "group " << g << " position " << p;
        int32_t stored[2];
        std::memcpy(stored, slot(cache, g, block, p), sizeof(stored));
        ASSERT_EQ(stored[0], p + 1) << "group " << g;
        ASSERT_EQ(stored[1], lease.token_ids()[static_cast<size_t>(p)].value) << "group " << g << " position " << p;
      }
    }
  }

  uint64_t live_blocks() const { return pool.stats().live_blocks; }
  uint64_t cached_blocks() const { return pool.stats().cached_blocks; }

  FakeClock clock;
  BlockPool pool;
  PrefixIndex index;
  std::vector<std::byte> arena;
  WorldIo io;
  std::unique_ptr<Tiering> tiering;  // null: none. Tests give it its stores
  std::unique_ptr<Sessions> sessions;
  std::vector<std::unique_ptr<Cache>> caches;
  std::vector<BlockOp> ops;
};

inline const std::vector<std::vector<GroupSpec>> kOneGroup{{{.block_bytes = 256}}};

// Tokens that depend on their place and a salt.
inline std::vector<TokenId> salted_tokens(int n, int salt = 0) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(TokenId((i * 31 + salt * 7919 + 5) % 32003));
  return tokens;
}
// `base`'s first n_common tokens, then others.
inline std::vector<TokenId> branch_of(std::span<const TokenId> base, size_t n_common, size_t n, int salt) {
  std::vector<TokenId> tokens(base.begin(), base.begin() + static_cast<ptrdiff_t>(n_common));
  while (tokens.size() < n) tokens.push_back(TokenId(40000 + static_cast<int>(tokens.size()) * 13 + salt * 1009));
  return tokens;
}

}  // namespace pagoda::kv
