// Random puts, gets, erases, clears and restarts, many under way at once, against a naive set of what must be there.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/log.h"
#include "base/test_seed.h"
#include "kv/test_tier_world.h"
#include "kv/tier_disk.h"

namespace pagoda::kv {
namespace {

constexpr size_t kBlockBytes = 1000;
constexpr uint32_t kBlocks = 16;
constexpr uint64_t kObjects = 200;

struct RandomTierLoad {
  uint64_t budget_bytes;
  uint64_t segment_bytes;
  bool is_roomy;    // nothing is ever reclaimed: the model knows what is there
  bool has_faults;  // the disk fails now and then
  int n_steps;
  int checks_every = 64;
};

class TierRandom {
 public:
  TierRandom(const RandomTierLoad& load, unsigned seed) : load_(load), random_(seed), blocks_(kBlocks, kBlockBytes) {
    for (uint64_t n = 0; n < kObjects; ++n) objects_.push_back(test_object(n, n % 3));
    for (uint32_t b = 0; b < kBlocks; ++b) free_blocks_.push_back(b);
    open();
  }

  void run() {
    for (int step = 0; step < load_.n_steps && !testing::Test::HasFailure(); ++step) {
      turn();
      if (load_.has_faults) roll_faults();
      if (step % load_.checks_every == 0) check();
    }
    drain();
    check();
  }
  uint64_t n_hits = 0, n_reclaimed = 0, n_failed = 0;

 private:
  struct Flight {
    TierVerb verb;
    uint64_t object = 0;
    uint32_t block = 0;
    bool is_erased = false;
  };

  uint64_t draw(uint64_t n) { return random_() % n; }

  void open() {
    caller_.store = nullptr;
    tier_.reset();
    DiskTierConfig config{.dir = dir_.path(), .budget_bytes = load_.budget_bytes, .segment_bytes = load_.segment_bytes};
    config.pause_us = 0;
    if (load_.has_faults) {
      config.workers = one(std::make_unique<FaultyIo>(faults_));
    } else if (draw(2) == 0) {
      for (int i = 0; i < 3; ++i) config.workers.push_back(make_sync_io());
    }
    auto tier = DiskTier::open(std::move(config), blocks_, caller_.wake());
    ASSERT_TRUE(tier.has_value()) << tier.error().to_string();
    tier_ = std::move(*tier);
    caller_.store = tier_.get();
  }

  void roll_faults() {
    const bool is_bad = draw(50) == 0;
    faults_.read_errno = is_bad && draw(2) == 0 ? EIO : 0;
    faults_.write_errno = is_bad ? (draw(2) == 0 ? EIO : ENOSPC) : 0;
    faults_.allocate_errno = is_bad && draw(2) == 0 ? ENOSPC : 0;
    faults_.is_piecemeal = draw(4) == 0;
  }

  void turn() {
    const uint64_t object = draw(kObjects);
    const uint64_t what = draw(1000);
    if (what < 450) return begin(TierVerb::kPut, object);
    if (what < 900) return begin(TierVerb::kGet, object);
    if (what < 990) return erase(object);
    if (what < 996) return drain();
    if (what < 998) return clear();
    drain();
    n_reclaimed += tier_->stats().reclaimed_objects;
    open();
  }

  void begin(TierVerb verb, uint64_t object) {
    take_done();
    while (free_blocks_.empty()) wait_for_one();
    const auto is_of_object = [&](const auto& flight) { return flight.second.object == object; };
    if (std::ranges::any_of(flights_, is_of_object)) return;
    const uint32_t block = free_blocks_.back();
    const TicketId ticket(++last_ticket_);
    if (verb == TierVerb::kPut) fill_with(objects_[object], blocks_.bytes(block));
    const bool is_there = present_.contains(object);
    const bool has_begun = verb == TierVerb::kPut
                               ? tier_->put(ticket, objects_[object], block_of(object, block), std::nullopt)
                               : tier_->get(ticket, objects_[object], blocks_.block(block));
    if (load_.is_roomy) {
      EXPECT_EQ(has_begun, verb == TierVerb::kGet ? is_there : !is_there);
    }
    if (verb == TierVerb::kGet && has_begun) {
      EXPECT_TRUE(is_there);
    }
    if (!has_begun) return;
    free_blocks_.pop_back();
    flights_.emplace(ticket.value, Flight{.verb = verb, .object = object, .block = block});
  }

  TierBlock block_of(uint64_t object, uint32_t block) const {
    TierBlock of = blocks_.block(block);
    of.use = object % 3 == 1 ? TierUse::kReplay : TierUse::kContext;
    return of;
  }

  void erase(uint64_t object) {
    tier_->erase(objects_[object]);
    EXPECT_EQ(tier_->presence(objects_[object]), Presence::kNo);
    present_.erase(object);
    for (auto& [ticket, flight] : flights_) flight.is_erased |= flight.object == object;
  }

  void clear() {
    const TicketId ticket(++last_ticket_);
    ASSERT_TRUE(tier_->clear(ticket));
    present_.clear();
    for (auto& [t, flight] : flights_) flight.is_erased = true;
    flights_.emplace(ticket.value, Flight{.verb = TierVerb::kClear, .object = kObjects});
  }

  void end(const TierDone& done) {
    const auto found = flights_.find(done.ticket.value);
    ASSERT_NE(found, flights_.end());
    const Flight flight = found->second;
    flights_.erase(found);
    ASSERT_EQ(done.verb, flight.verb);
    if (flight.verb == TierVerb::kClear) return;
    free_blocks_.push_back(flight.block);
    n_failed += done.outcome != TierOutcome::kDone;
    if (flight.verb == TierVerb::kPut) {
      if (done.outcome == TierOutcome::kDone && !flight.is_erased) present_.insert(flight.object);
      if (!flight.is_erased && load_.is_roomy) {
        EXPECT_EQ(done.outcome, TierOutcome::kDone);
      }
      return;
    }
    if (!load_.has_faults) {
      EXPECT_EQ(done.outcome, TierOutcome::kDone);
    }
    if (done.outcome != TierOutcome::kDone) return;
    ++n_hits;
    EXPECT_TRUE(blocks_.bytes(flight.block) == bytes_of(objects_[flight.object], kBlockBytes));
  }

  void take_done() {
    done_.clear();
    tier_->take_done(done_);
    for (const TierDone& done : done_) end(done);
  }
  void wait_for_one() {
    const TierDone done = caller_.wait(TicketId(flights_.begin()->first));
    end(done);
    caller_.take_rest(done_);
    for (const TierDone& other : done_) end(other);
  }
  void drain() {
    take_done();
    while (!flights_.empty() && !testing::Test::HasFatalFailure()) wait_for_one();
  }

  void check() {
    const Status status = tier_->check_integrity();
    ASSERT_TRUE(status.has_value()) << status.error().to_string();
    ASSERT_LE(tier_->stats().used_bytes, load_.budget_bytes);
    if (!flights_.empty()) return;
    ASSERT_LE(dir_.bytes(), load_.budget_bytes);
    for (uint64_t object = 0; object < kObjects; ++object) {
      const bool is_there = tier_->presence(objects_[object]) == Presence::kYes;
      ASSERT_TRUE(is_there ? present_.contains(object) : !load_.is_roomy || !present_.contains(object)) << object;
    }
  }

  RandomTierLoad load_;
  std::mt19937 random_;
  TempDir dir_;
  TestBlocks blocks_;
  Faults faults_;
  TierCaller caller_;
  std::unique_ptr<DiskTier> tier_;
  std::vector<TierObject> objects_;
  std::vector<uint32_t> free_blocks_;
  std::set<uint64_t> present_;  // put, and not erased since
  std::map<uint64_t, Flight> flights_;
  std::vector<TierDone> done_;
  uint64_t last_ticket_ = 0;
};

void run_load(const RandomTierLoad& load, auto&& expect) {
  const unsigned seed = test_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  TierRandom world(load, seed);
  world.run();
  expect(world);
}

TEST(DiskTierRandom, WithRoomForAll) {
  run_load(
      {.budget_bytes = 16 << 20, .segment_bytes = 64 << 10, .is_roomy = true, .has_faults = false, .n_steps = 30'000},
      [](const TierRandom& w) { EXPECT_GT(w.n_hits, 3000u); });
}

TEST(DiskTierRandom, WithSegmentsReclaimed) {
  run_load(
      {.budget_bytes = 200 << 10, .segment_bytes = 20 << 10, .is_roomy = false, .has_faults = false, .n_steps = 30'000},
      [](const TierRandom& w) {
        EXPECT_GT(w.n_hits, 500u);
        EXPECT_GT(w.n_reclaimed, 100u);
      });
}

TEST(DiskTierRandom, OnABadDisk) {
  start_log("error");  // thousands of warnings
  run_load(
      {.budget_bytes = 200 << 10, .segment_bytes = 20 << 10, .is_roomy = false, .has_faults = true, .n_steps = 30'000},
      [](const TierRandom& w) {
        EXPECT_GT(w.n_hits, 500u);
        EXPECT_GT(w.n_failed, 50u);
      });
}

TEST(DiskTierRandom, DISABLED_AMillionSteps) {
  start_log("error");
  RandomTierLoad load{.budget_bytes = 200 << 10,
                      .segment_bytes = 20 << 10,
                      .is_roomy = false,
                      .has_faults = false,
                      .n_steps = 500'000,
                      .checks_every = 1};
  run_load(load, [](const TierRandom& w) { EXPECT_GT(w.n_reclaimed, 1000u); });
  load.has_faults = true;
  run_load(load, [](const TierRandom& w) { EXPECT_GT(w.n_failed, 1000u); });
}

}  // namespace
}  // namespace pagoda::kv
