// Random prompts over a small pool and a tier that delays, loses, corrupts and goes away, against what a naive reader expects: whatever a
// lease sees is what its tokens say, and nothing is held when all is done.
#include <gtest/gtest.h>

#include <random>

#include "base/test_seed.h"
#include "kv/test_tiered_world.h"

namespace pagoda::kv {
namespace {

struct Stream {
  std::unique_ptr<KvLease> lease;
  std::vector<TokenId> tokens;
  std::optional<WaitOn> wait;
};

class TieringRandom {
 public:
  TieringRandom(unsigned seed, const std::vector<std::vector<GroupSpec>>& models, FakeTier::Index index)
      : random_(seed), w_(10 + draw(40), objects_, models, index, {.staging_bytes = 256 * (1 + draw(64))}) {
    w_.tier->answers = FakeTier::Answers::kWhenFinished;
    w_.tier->most_queued = 1 + draw(60);
  }

  void run(int n_steps, int checks_every) {
    for (int step = 0; step < n_steps && !testing::Test::HasFailure(); ++step) {
      tier_turn();
      stream_turn();
      ASSERT_WITHIN_BUDGET(w_.pool.stats());
      if (step % checks_every == 0) check();
    }
    for (Stream& stream : streams_) w_.release(*stream.lease);
    streams_.clear();
    w_.tier->finish(1000);
    while (w_.tiering->is_loading() || w_.tiering->is_storing()) {
      w_.poll();
      w_.tier->finish(1000);
    }
    check();
    EXPECT_EQ(w_.live_blocks(), 0u);
    w_.index.clear();
    EXPECT_EQ(w_.pool.stats().free_extents, w_.pool.n_extents());
    EXPECT_EQ(w_.index.trie().n_nodes(), 0u);
    n_loaded += w_.stats().loaded_blocks;
    n_restored += w_.stats().restored_tokens[0];
    n_cut += w_.stats().loads_cut;
    n_unused += w_.stats().unused_blocks;
  }

  uint64_t n_loaded = 0, n_restored = 0, n_cut = 0, n_unused = 0, n_expired = 0;

 private:
  unsigned draw(unsigned n) { return random_() % n; }

  void tier_turn() {
    for (unsigned n = draw(5); n > 0 && w_.tier->n_waiting() > 0; --n) {
      w_.tier->finish_at(draw(static_cast<unsigned>(w_.tier->n_waiting())));
    }
    if (draw(300) == 0) w_.tier->is_down = !w_.tier->is_down;
    if (!objects_.empty() && draw(40) == 0) {
      const TierObject object = objects_.begin()->first;
      if (draw(2) == 0) {
        w_.tier->erase(object);
      } else {
        w_.tier->faults[object.key.bytes] = draw(2) ? TierOutcome::kCorrupt : TierOutcome::kFailed;
      }
    }
    if (draw(100) == 0) w_.tier->faults.clear();
    if (draw(30) == 0) w_.index.clear();
    w_.clock.advance_us(draw(60) == 0 ? 2'100'000 : static_cast<int64_t>(draw(20'000)));
    for (const TicketId ticket : w_.poll()) {
      for (Stream& stream : streams_) {
        if (stream.wait && stream.wait->ticket == ticket) stream.wait.reset();
      }
    }
  }

  std::vector<TokenId> some_tokens() {
    const std::vector<TokenId> base = salted_tokens(static_cast<int>(40 + draw(300)), static_cast<int>(draw(4)));
    if (draw(2) == 0) return base;
    return branch_of(base, draw(static_cast<unsigned>(base.size())), base.size() + 1, static_cast<int>(draw(2)));
  }

  void stream_turn() {
    if (streams_.size() < 2 || (streams_.size() < 8 && draw(10) == 0)) {
      auto lease = std::make_unique<KvLease>(ModelId(0), CacheNamespace{{draw(2), 0}});
      if (draw(10) == 0) lease->reuse = PrefixReuse::kNone;
      streams_.push_back({std::move(lease), some_tokens(), {}});
    }
    const size_t i = draw(static_cast<unsigned>(streams_.size()));
    Stream& stream = streams_[i];
    KvLease& lease = *stream.lease;
    if (draw(12) == 0) {  // ends, or is preempted and comes again
      w_.release(lease);
      stream.wait.reset();
      lease.patience = Patience::kMayWait;
      if (draw(2) == 0) streams_.erase(streams_.begin() + static_cast<ptrdiff_t>(i));
      return;
    }
    if (stream.wait && stream.wait->deadline_us <= w_.clock.now_us()) {
      lease.patience = Patience::kNever;
      stream.wait.reset();
      ++n_expired;
    }
    if (stream.wait) return;
    if (lease.n_written() > lease.n_committed()) return w_.commit(lease);
    if (static_cast<size_t>(lease.n_written()) == stream.tokens.size()) stream.tokens.push_back(TokenId(7));
    const Admission answer = w_.admit(lease, stream.tokens, static_cast<int32_t>(1 + draw(120)));
    if (const auto* wait = std::get_if<WaitOn>(&answer)) {
      EXPECT_EQ(lease.patience, Patience::kMayWait);
      stream.wait = *wait;
    }
    w_.check(lease);
  }

  void check() {
    std::vector<const KvLease*> leases;
    for (const Stream& stream : streams_) leases.push_back(stream.lease.get());
    w_.sound(leases);
  }

  std::mt19937 random_;
  FakeTier::Objects objects_;
  TieredWorld w_;
  std::vector<Stream> streams_;
};

struct Rounds {
  unsigned n_rounds;
  int n_steps;  // of each
  int checks_every;
};

void run_rounds(const Rounds& rounds) {
  const unsigned seed = test_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const std::vector<std::vector<std::vector<GroupSpec>>> models{
      kOneGroup,
      kWindowed,
      {{{.block_bytes = 256}, {.block_bytes = 320, .window_tokens = 33}, {.block_bytes = 512}}},
      {{{.block_bytes = 256, .window_tokens = 70}}}};
  uint64_t n_loaded = 0, n_restored = 0, n_cut = 0, n_unused = 0, n_expired = 0;
  for (unsigned round = 0; round < rounds.n_rounds && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    TieringRandom load(seed + round, models[round % models.size()],
                       round % 16 < 8 ? FakeTier::Index::kKept : FakeTier::Index::kAskedFor);
    load.run(rounds.n_steps, rounds.checks_every);
    n_loaded += load.n_loaded;
    n_restored += load.n_restored;
    n_cut += load.n_cut;
    n_unused += load.n_unused;
    n_expired += load.n_expired;
  }
  EXPECT_GT(n_loaded, 1000u);
  EXPECT_GT(n_restored, 1000u);
  EXPECT_GT(n_cut, 10u);
  EXPECT_GT(n_unused, 10u);
  EXPECT_GT(n_expired, 10u);
}

TEST(TieringRandomTest, WhatIsSeenIsWhatTheTokensSay) {
  run_rounds({.n_rounds = 16, .n_steps = 4000, .checks_every = 10});
}

TEST(TieringRandomTest, DISABLED_AMillionSteps) { run_rounds({.n_rounds = 64, .n_steps = 16'000, .checks_every = 1}); }

}  // namespace
}  // namespace pagoda::kv
