// Random turns, forks, pins, deletions, time and pressure against a naive model: which tokens each session holds.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kv/test_tiered_world.h"

namespace pagoda::kv {
namespace {

struct Known {
  std::vector<TokenId> tokens;
  bool is_pinned = false;
  int64_t used_us = 0;
};

class SessionRandom {
 public:
  SessionRandom(size_t n_extents, const std::vector<std::vector<GroupSpec>>& models, unsigned seed)
      : random_(seed), w_(n_extents, objects_, models) {}

  void run(int n_steps) {
    for (int step = 0; step < n_steps && !testing::Test::HasFatalFailure(); ++step) {
      turn();
      const PoolStats stats = w_.pool.stats();
      ASSERT_EQ(stats.live_bytes + stats.cached_bytes + stats.free_bytes + stats.overhead_bytes, stats.budget_bytes);
      const PrefixStats index = w_.index.stats();
      ASSERT_LE(index.held_bytes, stats.live_bytes + stats.cached_bytes);
      ASSERT_LE(index.pinned_bytes, std::min(index.held_bytes, stats.budget_bytes / 2));
      if (step % 20 == 0) check();
    }
    check();
    for (const auto& [key, known] : known_) ASSERT_TRUE(w_.sessions->remove(key));
    known_.clear();
    check();
    ASSERT_EQ(w_.index.stats().held_bytes, 0u);
  }

  uint64_t n_reused = 0, n_expired = 0;
  PrefixStats stats() const { return w_.index.stats(); }

 private:
  unsigned draw(unsigned n) { return random_() % n; }
  SessionKey some_key() { return {{{draw(2), 0}}, std::string(1, static_cast<char>('a' + draw(8)))}; }

  void turn() {
    w_.clock.advance_us(draw(60) == 0 ? 1'200'000 : 1 + draw(20'000));
    expire();
    const unsigned op = draw(20);
    if (op < 10) return run_turn();
    if (op < 13) return pressure();
    const SessionKey key = some_key();
    const auto at = known_.find(key);
    if (op < 15) {
      const SessionKey other{key.cache_namespace, std::string(1, static_cast<char>('a' + draw(8)))};
      fork(key, other);
    } else if (op < 16) {
      ASSERT_EQ(w_.sessions->remove(key).has_value(), at != known_.end());
      known_.erase(key);
    } else if (op < 19) {
      const bool is_on = draw(2) > 0;
      const Status pinned = w_.sessions->pin(key, is_on ? Sessions::Pin::kOn : Sessions::Pin::kOff);
      if (at == known_.end()) {
        ASSERT_EQ(pinned.error().code, ErrorCode::kNotFound);
      } else if (!pinned) {
        ASSERT_EQ(pinned.error().code, ErrorCode::kConflict);
      } else if (at->second.is_pinned != is_on) {
        at->second.is_pinned = is_on;
        at->second.used_us = w_.clock.now_us();
      }
    } else if (draw(20) == 0) {
      w_.index.clear();
    }
    w_.poll();
  }

  void fork(const SessionKey& from, const SessionKey& to) {
    const auto at = known_.find(from);
    const std::vector<TokenId> tokens = at == known_.end() ? std::vector<TokenId>() : at->second.tokens;
    const bool is_possible = at != known_.end() && !known_.contains(to);
    if (is_possible && !make_room()) return;
    const Status forked = w_.sessions->fork(from, to.name);
    ASSERT_EQ(forked.has_value(), is_possible);
    if (is_possible) known_[to] = {tokens, false, w_.clock.now_us()};
  }

  void expire() {
    w_.sessions->poll();
    n_expired += std::erase_if(known_, [&](const auto& one) {
      return !one.second.is_pinned && one.second.used_us + kTestTtlUs <= w_.clock.now_us();
    });
  }

  // The oldest that is not pinned goes. Times of use differ.
  bool make_room() {
    if (known_.size() < kTestSessions) return true;
    auto oldest = known_.end();
    for (auto at = known_.begin(); at != known_.end(); ++at) {
      if (!at->second.is_pinned && (oldest == known_.end() || at->second.used_us < oldest->second.used_us)) oldest = at;
    }
    if (oldest == known_.end()) return false;
    known_.erase(oldest);
    return true;
  }

  void run_turn() {
    const SessionKey key = some_key();
    if (!known_.contains(key) && !make_room()) {
      ASSERT_EQ(w_.sessions->enter(key), SessionId());
      return;
    }
    Known& known = known_[key];
    std::vector<TokenId> tokens = known.tokens;
    if (draw(5) == 0) tokens.resize(draw(static_cast<unsigned>(tokens.size() + 1)));
    for (unsigned n = 1 + draw(60); n > 0; --n) tokens.push_back(TokenId(static_cast<int>(draw(4))));
    if (tokens.size() > 500) tokens.resize(100);
    const SessionId id = w_.sessions->enter(key);
    ASSERT_NE(id, SessionId());
    KvLease lease(ModelId(0), key.cache_namespace);
    lease.session = id;
    n_reused += static_cast<uint64_t>(w_.serve(lease, tokens).reused_tokens);
    w_.release(lease);
    w_.sessions->leave(id);
    const bool is_beginning =
        known.tokens.size() >= tokens.size() && std::equal(tokens.begin(), tokens.end(), known.tokens.begin());
    if (!is_beginning && tokens.size() >= kBlockTokens) known.tokens = tokens;
    known.used_us = w_.clock.now_us();
  }

  // Others that need the memory get it, all of it if need be.
  void pressure() {
    const auto blocks = w_.pool.n_extents() * 1024 / 256 / w_.caches[0]->n_groups() * 3 / 4;
    const unsigned n = draw(4) == 0 ? static_cast<unsigned>(blocks) * 32 : 1 + draw(300);
    w_.serve(salted_tokens(static_cast<int>(n), static_cast<int>(100 + draw(50))));
  }

  void check() {
    w_.poll();
    ASSERT_SOUND(w_.caches[0]->check_integrity({}));
    ASSERT_SOUND(w_.sessions->check_integrity());
    ASSERT_EQ(w_.sessions->stats().sessions, known_.size());
    for (const auto& [key, known] : known_) {
      const auto info = w_.sessions->info(key);
      ASSERT_TRUE(info) << key.name;
      ASSERT_EQ(info->is_pinned, known.is_pinned);
      ASSERT_EQ(*w_.sessions->path(key)->token_ids, known.tokens);
    }
  }

  std::mt19937 random_;
  FakeTier::Objects objects_;
  TieredWorld w_;
  std::map<SessionKey, Known> known_;
};

TEST(SessionRandomTest, HoldsWhatTheModelHolds) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  uint64_t n_reused = 0, n_expired = 0, n_evicted = 0;
  for (unsigned round = 0; round < 8 && !testing::Test::HasFatalFailure(); ++round) {
    SessionRandom load(round % 2 == 0 ? 14 : 40, round % 4 < 2 ? kOneGroup : kWindowed, seed + round);
    load.run(500);
    n_reused += load.n_reused;
    n_expired += load.n_expired;
    n_evicted += load.stats().evicted_held;
  }
  EXPECT_GT(n_reused, 10'000u);
  EXPECT_GT(n_expired, 10u);
  EXPECT_GT(n_evicted, 100u);
}

// A poll, an admission and a turn cost the same among 10 sessions and among 100,000 that sleep.
TEST(SessionRandomTest, IdleOnesCostNothing) {
  FakeClock clock;
  BlockPool pool({.budget_bytes = 64 * 1024, .extent_bytes = 1024});
  PrefixIndex index(pool, 17);
  Sessions sessions({.index = &index,
                     .pool = &pool,
                     .clock = &clock,
                     .most_sessions = 200'000,
                     .most_table_bytes = uint64_t{1} << 30});
  const std::vector<GroupSpec> groups{{.block_bytes = 256}};
  Cache cache(pool, ModelId(0), groups, PrefixConfig{.index = &index, .clock = &clock, .sessions = &sessions});
  std::vector<BlockOp> ops;
  const auto turn = [&](const std::string& name, int salt) {
    const SessionId id = sessions.enter({{}, name});
    KvLease lease(ModelId(0), {});
    lease.session = id;
    const auto tokens = salted_tokens(70, salt);
    ops.clear();
    ASSERT_TRUE(std::holds_alternative<Granted>(cache.admit(lease, tokens, 70, ops)));
    cache.commit(lease, lease.n_written() - lease.n_committed());
    cache.release(lease);
    sessions.leave(id);
  };
  // Nodes walked and heap moves cannot be counted from outside; time can, coarsely.
  const auto us_of = [&](int first) {
    const SteadyClock real;
    int64_t best = INT64_MAX;
    for (int round = 0; round < 5; ++round) {
      const int64_t begin = real.now_us();
      for (int i = 0; i < 200; ++i) {
        turn("busy", first + round * 200 + i);
        sessions.poll();
      }
      best = std::min(best, real.now_us() - begin);
    }
    return best;
  };
  for (int i = 0; i < 10; ++i) turn("s" + std::to_string(i), i);
  const int64_t few_us = us_of(1000);
  for (int i = 10; i < 2'000; ++i) turn("s" + std::to_string(i), i);
  for (int i = 2'000; i < 100'000; ++i) ASSERT_TRUE(sessions.create({{}, "s" + std::to_string(i)}, std::nullopt));
  EXPECT_EQ(sessions.stats().sessions, 100'001u);
  const int64_t many_us = us_of(200'000);
  RecordProperty("few_us", static_cast<int>(few_us));
  RecordProperty("many_us", static_cast<int>(many_us));
  EXPECT_LT(many_us, few_us * 4 + 2000) << few_us << " us before";
  EXPECT_LT(sessions.stats().table_bytes, 100'001u * 1024);
}

}  // namespace
}  // namespace pagoda::kv
