// The disk tier: what was put comes back, whatever happens to process, files and disk; and the budget holds.
#include "kv/tier_disk.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>

#include "base/eventually.h"
#include "kv/test_disk_world.h"

namespace pagoda::kv {
namespace {

// Both ways of doing I/O; no io_uring here: twice the same.
class DiskTierIo : public testing::TestWithParam<const char*> {
 protected:
  static DiskTierConfig config() {
    DiskTierConfig c;
    if (std::string_view(GetParam()) == "pread") {
      for (int i = 0; i < 4; ++i) c.workers.push_back(make_sync_io());
    } else if (auto uring = make_uring_io(8)) {
      c.workers = one(std::move(uring));
    }
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Io, DiskTierIo, testing::Values("pread", "io_uring"),
                         [](const auto& info) { return info.param; });

TEST_P(DiskTierIo, WhatWasPutComesBackAlsoAfterARestart) {
  DiskWorld w(config());
  for (uint64_t n = 0; n < 40; ++n) ASSERT_EQ(w.put(n), TierOutcome::kDone);
  for (uint64_t n = 0; n < 40; ++n) ASSERT_EQ(w.get(n), TierOutcome::kDone);
  EXPECT_EQ(w.get(40), std::nullopt);
  EXPECT_EQ(w.put(7), std::nullopt);  // there already
  const TierStats stats = w.tier->stats();
  EXPECT_EQ(stats.puts, 40u);
  EXPECT_EQ(stats.hits, 40u);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.objects, 40u);
  EXPECT_EQ(stats.hit_bytes, 40 * kDiskTestBytes);
  EXPECT_EQ(stats.queued_put_bytes, 0u);
  EXPECT_GT(stats.read_bytes_per_s, 0);
  EXPECT_GT(stats.write_bytes_per_s, 0);
  EXPECT_EQ(stats.used_bytes + 0, w.dir.bytes());
  w.open(config());
  EXPECT_EQ(w.tier->stats().objects, 40u);
  for (uint64_t n = 0; n < 40; ++n) ASSERT_EQ(w.get(n), TierOutcome::kDone);
  ASSERT_EQ(w.put(41), TierOutcome::kDone);
  ASSERT_EQ(w.get(41), TierOutcome::kDone);
}

TEST_P(DiskTierIo, ManyAtOnce) {
  DiskWorld w(config());
  std::vector<TicketId> tickets;
  for (uint32_t n = 0; n < 60; ++n) {
    fill_with(test_object(n), w.blocks.bytes(n));
    tickets.push_back(w.caller.next_ticket());
    ASSERT_TRUE(w.tier->put(tickets.back(), test_object(n), w.blocks.block(n), std::nullopt));
  }
  for (const TicketId ticket : tickets) ASSERT_EQ(w.caller.wait(ticket).outcome, TierOutcome::kDone);
  tickets.clear();
  for (uint32_t n = 0; n < 60; ++n) {
    std::ranges::fill(w.blocks.bytes(n), std::byte{});
    tickets.push_back(w.caller.next_ticket());
    ASSERT_TRUE(w.tier->get(tickets.back(), test_object(n), w.blocks.block(n)));
  }
  for (const TicketId ticket : tickets) ASSERT_EQ(w.caller.wait(ticket).outcome, TierOutcome::kDone);
  for (uint32_t n = 0; n < 60; ++n) ASSERT_TRUE(w.blocks.bytes(n) == bytes_of(test_object(n), kDiskTestBytes));
}

TEST(DiskTier, FilesAreForTheirOwnerOnly) {
  DiskWorld w;
  ASSERT_EQ(w.put(1), TierOutcome::kDone);
  for (const auto& entry : std::filesystem::directory_iterator(w.dir.path())) {
    struct stat info{};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << entry.path();
  }
}

TEST(DiskTier, GroupsAndSizesAreKeptApart) {
  DiskWorld w;
  TestBlocks small(1, 100);
  ASSERT_EQ(w.caller.put_made(w.blocks, test_object(1, 0)), TierOutcome::kDone);
  ASSERT_EQ(w.caller.put_made(w.blocks, test_object(1, 1)), TierOutcome::kDone);
  EXPECT_EQ(w.caller.get_checked(w.blocks, test_object(1, 1)), TierOutcome::kDone);
  EXPECT_EQ(w.caller.get(test_object(1, 0), small.block(0)), std::nullopt);  // not of this size
  EXPECT_EQ(w.tier->stats().objects, 2u);
}

TEST(DiskTier, ABlockThatIsNotWhatWasSealedIsNotStored) {
  DiskWorld w;
  fill_with(test_object(1), w.blocks.bytes(0));
  EXPECT_EQ(w.caller.put(test_object(1), w.blocks.block(0), crc32c(w.blocks.bytes(0)) ^ 1), TierOutcome::kCorrupt);
  EXPECT_FALSE(w.has(1));
  EXPECT_EQ(w.tier->stats().faulted(TierFault::kStale), 1u);
}

// Replay points and other blocks neither crowd each other out nor leave room unused.
class DiskTierParts : public testing::Test {
 protected:
  static TierObject object_of(uint64_t n, TierUse use) { return test_object(n, use == TierUse::kReplay ? 1 : 0); }
  void put(uint64_t first, uint64_t n, TierUse use) {
    for (uint64_t i = first; i < first + n; ++i) {
      const TierObject object = object_of(i, use);
      fill_with(object, w_.blocks.bytes(0));
      TierBlock block = w_.blocks.block(0);
      block.use = use;
      ASSERT_EQ(w_.caller.put(object, block), TierOutcome::kDone);
      const TierStats stats = w_.tier->stats();
      ASSERT_LE(stats.used_bytes, stats.budget_bytes);
      ASSERT_LE(stats.replay_bytes, stats.used_bytes);
    }
    ASSERT_TRUE(w_.tier->check_integrity());
  }
  uint64_t n_there(uint64_t first, uint64_t n, TierUse use) const {
    uint64_t n_found = 0;
    for (uint64_t i = first; i < first + n; ++i) n_found += w_.tier->presence(object_of(i, use)) == Presence::kYes;
    return n_found;
  }
  static DiskTierConfig config() { return {.budget_bytes = 2 << 20, .segment_bytes = 32 << 10}; }

  DiskWorld w_{config()};  // some 200 blocks in 50 segments
};

TEST_F(DiskTierParts, ReplayPointsLeaveOtherBlocksTheirPart) {
  put(0, 120, TierUse::kContext);
  put(0, 1000, TierUse::kReplay);
  EXPECT_EQ(n_there(0, 120, TierUse::kContext), 120u) << "less than their part";
  put(1000, 400, TierUse::kContext);
  put(1000, 1000, TierUse::kReplay);
  EXPECT_GE(n_there(1000, 400, TierUse::kContext), 140u);
  EXPECT_LE(w_.tier->stats().replay_bytes, w_.tier->stats().budget_bytes / 4);
}

TEST_F(DiskTierParts, OtherBlocksLeaveReplayPointsTheirPart) {
  put(0, 40, TierUse::kReplay);
  put(0, 1000, TierUse::kContext);
  EXPECT_EQ(n_there(0, 40, TierUse::kReplay), 40u);
  w_.open(config());
  EXPECT_EQ(n_there(0, 40, TierUse::kReplay), 40u);
  put(1000, 1000, TierUse::kContext);
  EXPECT_EQ(n_there(0, 40, TierUse::kReplay), 40u) << "also after a restart";
}

TEST_F(DiskTierParts, EitherMayUseWhatTheOtherDoesNot) {
  put(0, 1000, TierUse::kReplay);
  EXPECT_GT(n_there(0, 1000, TierUse::kReplay), 180u);
  put(0, 1000, TierUse::kContext);
  EXPECT_GT(n_there(0, 1000, TierUse::kContext), 140u);
  EXPECT_GE(n_there(0, 1000, TierUse::kReplay), 40u);
  const TicketId cleared = w_.caller.next_ticket();
  ASSERT_TRUE(w_.tier->clear(cleared));
  ASSERT_EQ(w_.caller.wait(cleared).outcome, TierOutcome::kDone);  // the files are gone, and count no more
  put(2000, 1000, TierUse::kContext);
  EXPECT_GT(n_there(2000, 1000, TierUse::kContext), 180u);
}

TEST(DiskTier, AskAnswersFromTheIndex) {
  DiskWorld w;
  ASSERT_EQ(w.put(1), TierOutcome::kDone);
  const std::array objects{test_object(1), test_object(2)};
  EXPECT_EQ(w.caller.ask(objects), (std::vector<uint8_t>{1, 0}));
}

TEST(DiskTier, EraseHoldsAcrossARestart) {
  DiskWorld w;
  for (uint64_t n = 0; n < 4; ++n) ASSERT_EQ(w.put(n), TierOutcome::kDone);
  w.tier->erase(test_object(2));
  w.tier->erase(test_object(99));
  EXPECT_FALSE(w.has(2));
  w.open();
  EXPECT_FALSE(w.has(2));
  EXPECT_EQ(w.tier->stats().objects, 3u);
  ASSERT_EQ(w.put(2), TierOutcome::kDone);
  ASSERT_EQ(w.get(2), TierOutcome::kDone);
}

TEST(DiskTier, ClearDeletesTheFiles) {
  DiskWorld w;
  for (uint64_t n = 0; n < 30; ++n) ASSERT_EQ(w.put(n), TierOutcome::kDone);
  const TicketId ticket = w.caller.next_ticket();
  ASSERT_TRUE(w.tier->clear(ticket));
  EXPECT_FALSE(w.has(1));
  EXPECT_EQ(w.caller.wait(ticket).outcome, TierOutcome::kDone);
  EXPECT_TRUE(w.dir.files(".seg").empty());
  EXPECT_EQ(w.tier->stats().used_bytes, 0u);
  ASSERT_EQ(w.put(1), TierOutcome::kDone);
  w.tier.reset();
  std::ofstream(w.dir.path() + "/notes.txt") << "not ours";
  ASSERT_TRUE(DiskTier::clear_dir(w.dir.path()).has_value());
  EXPECT_TRUE(w.dir.files(".seg").empty());
  EXPECT_EQ(w.dir.files("notes.txt").size(), 1u);
}

// Blocks that can be read in only once they are let go.
class StuckBlocks final : public BlockIo {
 public:
  explicit StuckBlocks(TestBlocks& blocks) : blocks_(blocks) {}
  void copy_out(ModelId model, GroupId group, BlockId id, std::span<std::byte> to) const override {
    blocks_.copy_out(model, group, id, to);
  }
  void copy_in(ModelId model, GroupId group, BlockId id, std::span<const std::byte> from) override {
    n_waiting.fetch_add(1);
    is_free.wait(false);
    blocks_.copy_in(model, group, id, from);
  }
  uint32_t checksum(ModelId model, GroupId group, BlockId id) const override {
    return blocks_.checksum(model, group, id);
  }

  std::atomic<int> n_waiting{0};
  std::atomic<bool> is_free{false};

 private:
  TestBlocks& blocks_;
};

// The file of a segment that was being read was there when the clear had ended.
TEST(DiskTier, AClearEndsWithTheLastFile) {
  TempDir dir;
  TestBlocks blocks(2, kDiskTestBytes);
  StuckBlocks stuck(blocks);
  TierCaller caller;
  DiskTierConfig config{.dir = dir.path(), .budget_bytes = 1 << 20, .segment_bytes = 64 << 10};
  for (int i = 0; i < 2; ++i) config.workers.push_back(make_sync_io());
  auto tier = DiskTier::open(std::move(config), stuck, caller.wake());
  ASSERT_TRUE(tier.has_value()) << tier.error().to_string();
  caller.store = tier->get();
  for (uint64_t n = 0; n < 30; ++n) ASSERT_EQ(caller.put_made(blocks, test_object(n)), TierOutcome::kDone);
  const TicketId get = caller.next_ticket(), clear = caller.next_ticket();
  ASSERT_TRUE((*tier)->get(get, test_object(0), blocks.block(1)));
  ASSERT_TRUE(eventually([&] { return stuck.n_waiting == 1; }));
  ASSERT_TRUE((*tier)->clear(clear));
  EXPECT_TRUE(eventually([&] { return dir.files(".seg").size() == 1; }));  // being read
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::vector<TierDone> done;
  (*tier)->take_done(done);
  EXPECT_TRUE(done.empty());
  stuck.is_free = true;
  stuck.is_free.notify_all();
  EXPECT_EQ(caller.wait(get).outcome, TierOutcome::kDone);
  EXPECT_EQ(caller.wait(clear).outcome, TierOutcome::kDone);
  EXPECT_TRUE(dir.files(".seg").empty());
  EXPECT_EQ((*tier)->stats().used_bytes, 0u);
}

TEST(DiskTier, ASecondOpenerIsToldWhy) {
  DiskWorld w;
  auto second = DiskTier::open({.dir = w.dir.path(), .budget_bytes = 1 << 20}, w.blocks, [] {});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(second.error().message, w.dir.path() + " is in use by another process; give each its own folder");
  EXPECT_FALSE(DiskTier::clear_dir(w.dir.path()).has_value());
  w.tier.reset();
  w.open();
}

TEST(DiskTier, AFolderThatCannotBeIsAnError) {
  TestBlocks blocks(1, 100);
  auto missing = DiskTier::open({.dir = "/nonexistent/kv", .budget_bytes = 1 << 20}, blocks, [] {});
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("/nonexistent/kv"), std::string::npos);
}

TEST(DiskTier, TheBudgetHoldsAndTheOldestUsedGo) {
  constexpr uint64_t kBudget = 300 << 10;
  DiskWorld w({.budget_bytes = kBudget});
  for (uint64_t n = 0; n < 200; ++n) {
    ASSERT_EQ(w.put(n), TierOutcome::kDone);
    ASSERT_LE(w.dir.bytes(), kBudget);
    ASSERT_LE(w.tier->stats().used_bytes, kBudget);
    ASSERT_EQ(w.get(0), TierOutcome::kDone) << n;  // used all the time: its segment stays
  }
  const TierStats stats = w.tier->stats();
  EXPECT_GT(stats.reclaimed_segments, 10u);
  EXPECT_EQ(stats.reclaimed_objects + stats.objects, 200u);
  EXPECT_FALSE(w.has(20));
  EXPECT_TRUE(w.has(199));
  w.open({.budget_bytes = kBudget / 2});  // a smaller budget holds at once
  EXPECT_LE(w.dir.bytes(), kBudget / 2);
  EXPECT_TRUE(w.has(199));
  w.open({.budget_bytes = 10'000});  // too small for one
  EXPECT_EQ(w.put(1000), TierOutcome::kDropped);
  EXPECT_EQ(w.tier->stats().dropped(TierDrop::kNoRoom), 1u);
  EXPECT_EQ(w.dir.bytes(), 0u);
}

TEST(DiskTier, AFullQueueDropsAndTheRateIsBounded) {
  DiskWorld w({.write_bytes_per_s = 10 * kDiskTestBytes, .queue_bytes = 20 * kDiskTestBytes});
  const auto start = std::chrono::steady_clock::now();
  int n_dropped = 0;
  for (uint32_t n = 0; n < 40; ++n) {
    fill_with(test_object(n), w.blocks.bytes(n));
    const TicketId ticket = w.caller.next_ticket();
    n_dropped += !w.tier->put(ticket, test_object(n), w.blocks.block(n), std::nullopt);
  }
  EXPECT_GE(n_dropped, 1);
  EXPECT_EQ(w.tier->stats().dropped(TierDrop::kQueueFull), static_cast<uint64_t>(n_dropped));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const uint64_t puts = w.tier->stats().puts;  // a second's worth at once, then ten a second
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_GE(puts, 10u);
  EXPECT_LE(static_cast<double>(puts), 12 + 10 * seconds.count());
  EXPECT_EQ(w.get(0), TierOutcome::kDone);  // gets do not wait behind puts
  w.tier.reset();                           // closes without waiting for the rest
}

}  // namespace
}  // namespace pagoda::kv
