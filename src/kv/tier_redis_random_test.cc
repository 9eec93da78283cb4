// Random puts, gets, erases and questions against a Redis server whose values others overwrite, drop and mix up.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/test_seed.h"
#include "kv/test_redis_server.h"
#include "kv/tier_redis.h"

namespace pagoda::kv {
namespace {

constexpr uint64_t kObjects = 40;

struct SharedServer {
  RedisServer redis;
  TestBlocks blocks{2, 3000};
  TierCaller caller;
  std::unique_ptr<RedisTier> tier;
  std::set<uint64_t> present;  // put, and not erased, spoilt or dropped since

  SharedServer() {
    tier = std::make_unique<RedisTier>(RedisTierConfig{.address = redis.address()}, blocks, caller.wake());
    caller.store = tier.get();
  }

  // Somebody else writes to the server.
  void spoil(std::mt19937& random, uint64_t n) {
    const std::string key = redis_key(test_object(n));
    const unsigned what = random() % 4;
    if (what == 0) redis.command({"DEL", key});
    if (what == 1) redis.command({"SETRANGE", key, std::to_string(random() % 3000), std::string(64, '!')});
    if (what == 2) redis.command({"RENAME", key, redis_key(test_object((n + 1) % kObjects))});
    if (what == 3) redis.command({"APPEND", key, "x"});
  }
};

void run_steps(int n_steps) {
  const unsigned seed = test_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  SharedServer s;
  std::set<uint64_t> spoilt;
  int n_hits = 0, n_refused = 0;
  for (int step = 0; step < n_steps && !testing::Test::HasFailure(); ++step) {
    const uint64_t n = random() % kObjects;
    const TierObject object = test_object(n);
    const unsigned what = random() % 100;
    if (what < 40) {
      ASSERT_EQ(s.caller.put_made(s.blocks, object), TierOutcome::kDone);
      s.present.insert(n);
    } else if (what < 85) {
      const auto outcome = s.caller.get_checked(s.blocks, object);  // looks at every byte
      n_hits += outcome == TierOutcome::kDone;
      n_refused += outcome == TierOutcome::kCorrupt;
      if (!spoilt.contains(n)) {
        ASSERT_EQ(outcome, s.present.contains(n) ? TierOutcome::kDone : TierOutcome::kAbsent);
      }
      if (outcome == TierOutcome::kCorrupt || outcome == TierOutcome::kAbsent) {
        spoilt.erase(n);  // unlinked: known again
        s.present.erase(n);
      }
    } else if (what < 90) {
      const auto there = s.caller.ask(std::array{object});
      ASSERT_TRUE(there.has_value());
      if (!spoilt.contains(n)) {
        ASSERT_EQ((*there)[0], s.present.contains(n));
      }
    } else if (what < 95) {
      s.tier->erase(object);
      while (s.caller.ask(std::array{object})->front() != 0) {
      }
      s.present.erase(n);
      spoilt.erase(n);
    } else {
      s.spoil(random, n);
      spoilt.insert(n);
      spoilt.insert((n + 1) % kObjects);
    }
  }
  EXPECT_GT(n_hits, 500);
  EXPECT_GT(n_refused, 20);
  EXPECT_EQ(s.tier->stats().breaker_openings, 0u);
}

TEST(RedisTierRandom, NeverAWrongByte) { run_steps(4000); }

TEST(RedisTierRandom, DISABLED_AMillionSteps) { run_steps(1'000'000); }

}  // namespace
}  // namespace pagoda::kv
