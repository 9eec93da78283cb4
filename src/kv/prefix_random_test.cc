// Random admissions, commits, rollbacks and releases against a naive model: the token lists that were ever committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/test_seed.h"
#include "kv/test_prefix_world.h"

namespace pagoda::kv {
namespace {

size_t common(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

struct Stream {
  std::unique_ptr<KvLease> lease;
  std::vector<TokenId> tokens;
  std::vector<TicketId> waits;
};

struct RandomLoad {
  size_t n_extents;
  std::vector<std::vector<GroupSpec>> models;
  PrefixTrie::HashFn hash = xxh3_128;
  int n_steps = 20000;
  int checks_every = 50;
  bool is_exact = false;  // nothing is ever evicted, and one full group: the model knows every hit
};

class PrefixRandom {
 public:
  PrefixRandom(const RandomLoad& load, unsigned seed)
      : load_(load), random_(seed), w_(load.n_extents, load.models, load.hash) {}

  void run() {
    for (int step = 0; step < load_.n_steps && !testing::Test::HasFatalFailure(); ++step) {
      turn();
      ASSERT_WITHIN_BUDGET(w_.pool.stats());
      if (step % load_.checks_every == 0) check_all();
    }
    for (Stream& stream : streams_) w_.release(*stream.lease);
    streams_.clear();
    check_all();
    ASSERT_EQ(w_.live_blocks(), 0u);
    ASSERT_EQ(w_.index.in_flight().size(), 0u);
    w_.index.clear();
    ASSERT_EQ(w_.pool.stats().free_extents, w_.pool.n_extents());
    ASSERT_EQ(w_.index.trie().n_nodes(), 0u);
  }

  uint64_t n_reused = 0, n_copied = 0, n_waits = 0, n_no_space = 0, n_granted = 0, n_best = 0;
  PrefixStats stats() const { return w_.index.stats(); }

 private:
  unsigned draw(unsigned n) { return random_() % n; }

  std::vector<TokenId>& committed(const KvLease& lease) {
    committed_.emplace_back();
    committed_.back().first = {lease.model(), lease.cache_namespace()};
    return committed_.back().second;
  }

  // A beginning that others have had, and an end of its own.
  std::vector<TokenId> some_tokens() {
    if (streams_.empty() || draw(4) == 0)
      return salted_tokens(static_cast<int>(1 + draw(200)), static_cast<int>(draw(6)));
    const std::vector<TokenId>& base = streams_[draw(static_cast<unsigned>(streams_.size()))].tokens;
    const size_t n_common = draw(static_cast<unsigned>(base.size() + 1));
    return branch_of(base, n_common, std::max<size_t>(1, n_common + draw(60)), static_cast<int>(draw(3)));
  }

  void start() {
    std::vector<TokenId> tokens = some_tokens();
    auto lease = std::make_unique<KvLease>(ModelId(draw(static_cast<unsigned>(load_.models.size()))),
                                           CacheNamespace{{draw(2), 0}});
    if (draw(8) == 0) lease->reuse = PrefixReuse::kNone;
    if (draw(4) == 0) lease->patience = Patience::kNever;
    streams_.push_back({std::move(lease), std::move(tokens), {}});
  }

  void turn() {
    const unsigned op = draw(20);
    if (streams_.size() < 2 || (op < 2 && streams_.size() < 10)) return start();
    const size_t i = draw(static_cast<unsigned>(streams_.size()));
    Stream& stream = streams_[i];
    KvLease& lease = *stream.lease;
    const int32_t n_open = lease.n_written() - lease.n_committed();
    if (op < 11) {
      admit(stream);
    } else if (op < 16) {
      commit(lease, n_open < 2 || draw(2) ? n_open : static_cast<int32_t>(draw(static_cast<unsigned>(n_open))));
    } else if (op < 17) {
      w_.cache_of(lease).rollback(lease,
                                  n_open > 0 ? static_cast<int32_t>(draw(static_cast<unsigned>(n_open + 1))) : 0);
    } else if (op < 18) {
      w_.release(lease);
    } else {
      w_.release(lease);
      streams_.erase(streams_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  void admit(Stream& stream) {
    KvLease& lease = *stream.lease;
    if (static_cast<size_t>(lease.n_written()) == stream.tokens.size()) {
      if (stream.tokens.size() > 400) return;
      stream.tokens.push_back(TokenId(static_cast<int>(draw(3))));  // generated
    }
    const auto n_left = static_cast<unsigned>(stream.tokens.size()) - static_cast<unsigned>(lease.n_written());
    const auto n_new = static_cast<int32_t>(1 + draw(std::min(n_left, 100u)));
    const int32_t n_before = lease.n_committed(), n_written = lease.n_written();
    const size_t expected = best_match(stream);
    const Admission answer = w_.admit(lease, stream.tokens, n_new);
    if (std::holds_alternative<WaitOn>(answer)) {
      ++n_waits;
      ASSERT_EQ(lease.patience, Patience::kMayWait);
    } else if (std::holds_alternative<NoSpace>(answer)) {
      ++n_no_space;
      ASSERT_FALSE(load_.is_exact);
      ASSERT_TRUE(n_written > 0 || !lease.holds_blocks());
      // Nothing that could be evicted stood in its way. (Hits may: they lie where they lie.)
      if (draw(4) == 0 && expected == static_cast<size_t>(n_before)) {
        w_.index.clear();
        ASSERT_TRUE(std::holds_alternative<NoSpace>(w_.admit(lease, stream.tokens, n_new)));
      }
    } else {
      const Granted granted = std::get<Granted>(answer);
      n_reused += static_cast<uint64_t>(granted.reused_tokens);
      n_copied += static_cast<uint64_t>(granted.copied_tokens);
      ASSERT_EQ(lease.n_committed(), n_before + granted.reused_tokens);
      ASSERT_LT(lease.n_committed(), lease.n_written());
      ASSERT_EQ(lease.n_written(), std::min<int32_t>(static_cast<int32_t>(stream.tokens.size()),
                                                     n_written + granted.reused_tokens + n_new));
    }
    ASSERT_LE(static_cast<size_t>(lease.n_committed()), std::max(expected, static_cast<size_t>(n_before)));
    if (load_.is_exact && std::holds_alternative<Granted>(answer)) {
      ASSERT_EQ(static_cast<size_t>(lease.n_committed()) / kBlockTokens, expected / kBlockTokens);
      n_best += static_cast<size_t>(lease.n_committed()) == expected ? 1 : 0;
      ++n_granted;
    }
    w_.check(lease);
  }

  void commit(KvLease& lease, int32_t n) {
    w_.cache_of(lease).commit(lease, n);
    w_.check(lease);
    const size_t n_full = static_cast<size_t>(lease.n_committed() / kBlockTokens * kBlockTokens);
    if (n_full == 0) return;
    std::vector<TokenId> path(lease.token_ids().begin(), lease.token_ids().begin() + static_cast<ptrdiff_t>(n_full));
    for (auto& [key, known] : committed_) {
      if (key != Key{lease.model(), lease.cache_namespace()}) continue;
      const size_t same = common(known, path);
      if (same == path.size()) return;
      if (same == known.size()) {
        known = std::move(path);
        return;
      }
    }
    committed(lease) = std::move(path);
  }

  // Tokens that the lease may hold at most after an admission that computes none.
  size_t best_match(const Stream& stream) {
    const KvLease& lease = *stream.lease;
    const auto n_now = static_cast<size_t>(lease.n_committed());
    if (lease.reuse == PrefixReuse::kNone || lease.n_written() != lease.n_committed() || n_now % kBlockTokens != 0) {
      return n_now;
    }
    size_t best = n_now;
    for (const auto& [key, known] : committed_) {
      if (key == Key{lease.model(), lease.cache_namespace()}) {
        best = std::max(best, std::min(common(known, stream.tokens), stream.tokens.size() - 1));
      }
    }
    return best;
  }

  void check_all() {
    for (uint32_t m = 0; m < load_.models.size(); ++m) {
      std::vector<const KvLease*> leases;
      for (const Stream& stream : streams_) {
        if (stream.lease->model() == ModelId(m)) leases.push_back(stream.lease.get());
      }
      ASSERT_SOUND(w_.caches[m]->check_integrity(leases));
    }
  }

  struct Key {
    ModelId model;
    CacheNamespace cache_namespace;
    friend bool operator==(const Key&, const Key&) = default;
  };
  RandomLoad load_;
  std::mt19937 random_;
  PrefixWorld w_;
  std::vector<Stream> streams_;
  std::vector<std::pair<Key, std::vector<TokenId>>> committed_;
};

TEST(PrefixRandomTest, EveryHitIsFoundWhereNothingIsEvicted) {
  const unsigned seed = test_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  PrefixRandom load({.n_extents = 4000, .models = kOneGroup, .n_steps = 10000, .checks_every = 500, .is_exact = true},
                    seed);
  load.run();
  EXPECT_GT(load.n_reused, 10000u);
  EXPECT_GT(load.n_copied, 100u);
  EXPECT_GT(load.n_waits, 10u);
  EXPECT_GT(load.n_best, load.n_granted * 9 / 10);  // only the newest children are searched for a partial block
}

struct Rounds {
  unsigned n_rounds;
  int n_steps;  // of each
  int checks_every;
};

// Groups and models that share budgets too small for them.
void run_small_budgets(const Rounds& rounds) {
  const unsigned seed = test_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  uint64_t n_no_space = 0, n_reused = 0;
  PrefixStats sum;
  for (unsigned round = 0; round < rounds.n_rounds && !testing::Test::HasFatalFailure(); ++round) {
    const std::vector<std::vector<GroupSpec>> models{
        {{.block_bytes = 256}, {.block_bytes = 320, .window_tokens = static_cast<int32_t>(1 + (seed + round) % 90)}},
        {{.block_bytes = 512}},
        {{.block_bytes = 300, .window_tokens = 40}}};
    PrefixRandom load({.n_extents = 10 + round % 16 * 4,
                       .models = models,
                       .n_steps = rounds.n_steps,
                       .checks_every = rounds.checks_every},
                      seed + round);
    load.run();
    n_no_space += load.n_no_space;
    n_reused += load.n_reused;
    sum.evicted_for_room += load.stats().evicted_for_room;
    sum.evicted_for_others += load.stats().evicted_for_others;
    sum.evicted_local += load.stats().evicted_local;
    sum.passed_local += load.stats().passed_local;
  }
  EXPECT_GT(n_no_space, 20u);
  EXPECT_GT(n_reused, 10000u);
  EXPECT_GT(sum.evicted_for_room, 100u);
  EXPECT_GT(sum.evicted_for_others, 100u);
  EXPECT_GT(sum.evicted_local, 10u);
  EXPECT_GT(sum.passed_local, 10u);
}

TEST(PrefixRandomTest, SmallBudgets) { run_small_budgets({.n_rounds = 16, .n_steps = 5000, .checks_every = 20}); }

TEST(PrefixRandomTest, DISABLED_AMillionSteps) {
  run_small_budgets({.n_rounds = 64, .n_steps = 16'000, .checks_every = 1});
}

TEST(PrefixRandomTest, AWeakHashChangesNothing) {
  const unsigned seed = test_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const PrefixTrie::HashFn weak = [](std::span<const std::byte> bytes, uint64_t s) {
    return Hash128{xxh3_64(bytes, s) & 15, 0};
  };
  PrefixRandom load({.n_extents = 60, .models = kOneGroup, .hash = weak, .n_steps = 10000, .checks_every = 100}, seed);
  load.run();
  EXPECT_GT(load.n_reused, 10000u);
}

}  // namespace
}  // namespace pagoda::kv
