// The disk tier when process, files or disk fail: never a wrong byte, never a hung request, every event counted.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <random>

#include "kv/test_disk_world.h"
#include "kv/tier_format.h"

namespace pagoda::kv {
namespace {

// ---- files that are not as they were left

void flip_bit(const std::filesystem::path& path, uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const char byte = static_cast<char>(file.get() ^ (1 << (bit % 8)));
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(byte);
}

TEST(DiskTierFaults, AFlippedPayloadBitIsNeverServed) {
  DiskWorld w;
  for (uint64_t n = 0; n < 4; ++n) ASSERT_EQ(w.put(n), TierOutcome::kDone);
  const SegmentShape shape{.id = 0, .slot_bytes = 8192, .n_slots = 8};
  flip_bit(w.dir.files(".seg")[0], (shape.slot_at(2) + 1234) * 8 + 3);
  EXPECT_EQ(w.get(2), TierOutcome::kCorrupt);
  EXPECT_EQ(w.get(2), std::nullopt);
  EXPECT_EQ(w.get(1), TierOutcome::kDone);
  EXPECT_EQ(w.tier->stats().faulted(TierFault::kCorrupt), 1u);
  EXPECT_EQ(w.tier->stats().quarantined_objects, 1u);
  ASSERT_EQ(w.put(2), TierOutcome::kDone);  // recomputed, in another slot
  ASSERT_EQ(w.get(2), TierOutcome::kDone);
  w.open();
  EXPECT_EQ(w.tier->stats().quarantined_objects, 1u);  // the slot stays bad
  ASSERT_EQ(w.get(2), TierOutcome::kDone);
}

TEST(DiskTierFaults, RandomFlippedBits) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    DiskWorld w;
    for (uint64_t n = 0; n < 20; ++n) ASSERT_EQ(w.put(n), TierOutcome::kDone);
    w.tier.reset();
    for (const auto& path : w.dir.files(".seg")) {
      for (int i = 0; i < 1 + round % 3; ++i) {
        const uint64_t bits = round % 2 == 0 ? std::filesystem::file_size(path) * 8 : (4096 + 8 * 64) * 8;
        flip_bit(path, random() % bits);
      }
    }
    w.open();
    for (uint64_t n = 0; n < 20; ++n) {
      const auto outcome = w.get(n);  // get_checked: a hit has the right bytes
      ASSERT_TRUE(outcome == TierOutcome::kDone || outcome == TierOutcome::kCorrupt || outcome == std::nullopt);
      ASSERT_NE(w.put(n), TierOutcome::kFailed);
      ASSERT_EQ(w.get(n), TierOutcome::kDone);
    }
    ASSERT_LE(w.dir.bytes(), 1u << 20);
  }
}

TEST(DiskTierFaults, TruncatedForeignAndFutureSegmentsAreQuarantinedAndGoFirst) {
  DiskWorld w({.budget_bytes = 400 << 10});
  for (uint64_t n = 0; n < 32; ++n) ASSERT_EQ(w.put(n), TierOutcome::kDone);
  w.tier.reset();
  const auto files = w.dir.files(".seg");
  ASSERT_EQ(files.size(), 4u);
  std::filesystem::resize_file(files[0], std::filesystem::file_size(files[0]) - 1);
  std::ofstream(files[1], std::ios::binary) << "not a segment";
  flip_bit(files[2], 8 * 8 + 1);  // the version
  std::ofstream(w.dir.path() + "/kv-00000000000000aa.new") << "left by a dead process";
  std::ofstream(w.dir.path() + "/kv-zz.seg") << "not ours";
  w.open({.budget_bytes = 400 << 10});
  TierStats stats = w.tier->stats();
  EXPECT_EQ(stats.quarantined_segments, 3u);
  EXPECT_EQ(stats.faulted(TierFault::kRefused), 3u);
  EXPECT_EQ(stats.objects, 8u);
  EXPECT_TRUE(w.dir.files(".new").empty());
  for (uint64_t n = 0; n < 32; ++n) {
    const bool is_left = n >= 24;
    ASSERT_EQ(w.get(n), is_left ? std::optional(TierOutcome::kDone) : std::nullopt);
  }
  for (uint64_t n = 100; n < 132; ++n) ASSERT_EQ(w.put(n), TierOutcome::kDone);
  stats = w.tier->stats();
  EXPECT_EQ(stats.objects, 40u);  // nothing whole had to go
  EXPECT_EQ(stats.reclaimed_segments, 0u);
  EXPECT_EQ(w.dir.files("kv-zz.seg").size(), 1u);
}

// ---- a disk that says no

struct FaultyWorld {
  Faults faults;
  FakeClock clock;
  DiskWorld w{config()};
  DiskTierConfig config() {
    DiskTierConfig c;
    c.workers = one(std::make_unique<FaultyIo>(faults));
    c.clock = &clock;
    return c;
  }
};

TEST(DiskTierFaults, ShortReadsAndWritesAreContinued) {
  FaultyWorld f;
  f.faults.is_piecemeal = true;
  for (uint64_t n = 0; n < 10; ++n) ASSERT_EQ(f.w.put(n), TierOutcome::kDone);
  for (uint64_t n = 0; n < 10; ++n) ASSERT_EQ(f.w.get(n), TierOutcome::kDone);
}

TEST(DiskTierFaults, AFullDiskStopsPutsAndGetsGoOn) {
  for (const bool is_at_create : {true, false}) {
    FaultyWorld f;
    ASSERT_EQ(f.w.put(1), TierOutcome::kDone);
    if (is_at_create) {
      for (uint64_t n = 2; n < 9; ++n) ASSERT_EQ(f.w.put(n), TierOutcome::kDone);  // the segment is full
      f.faults.allocate_errno = ENOSPC;
    } else {
      f.faults.write_errno = ENOSPC;
    }
    EXPECT_EQ(f.w.put(20), TierOutcome::kDropped);
    EXPECT_EQ(f.w.put(21), std::nullopt);  // not even tried
    EXPECT_EQ(f.w.tier->stats().dropped(TierDrop::kDiskFull), 2u);
    EXPECT_EQ(f.w.get(1), TierOutcome::kDone);
    EXPECT_TRUE(f.w.dir.files(".new").empty());
    f.faults.allocate_errno = 0;
    f.faults.write_errno = 0;
    EXPECT_EQ(f.w.put(21), std::nullopt);
    f.clock.advance_us(DiskTierConfig{}.pause_us);
    EXPECT_EQ(f.w.put(22), TierOutcome::kDone);  // room again
    EXPECT_FALSE(f.w.has(20));
  }
}

TEST(DiskTierFaults, IoErrorsAreCountedAndNothingHangs) {
  FaultyWorld f;
  ASSERT_EQ(f.w.put(1), TierOutcome::kDone);
  f.faults.read_errno = EIO;
  EXPECT_EQ(f.w.get(1), TierOutcome::kFailed);
  f.faults.read_errno = 0;
  EXPECT_EQ(f.w.get(1), TierOutcome::kDone);
  f.faults.write_errno = EIO;
  EXPECT_EQ(f.w.put(2), TierOutcome::kFailed);
  EXPECT_EQ(f.w.put(3), std::nullopt);
  EXPECT_EQ(f.w.tier->stats().dropped(TierDrop::kUnavailable), 1u);
  EXPECT_EQ(f.w.tier->stats().faulted(TierFault::kIo), 2u);
}

// Found by DiskTierRandom.OnABadDisk: the object came back with the next start.
TEST(DiskTierFaults, WhatCannotBeErasedTakesItsSegmentAlong) {
  FaultyWorld f;
  ASSERT_EQ(f.w.put(1), TierOutcome::kDone);
  f.faults.write_errno = EIO;
  f.w.tier->erase(test_object(1));
  f.w.open(f.config());
  EXPECT_FALSE(f.w.has(1));
  EXPECT_TRUE(f.w.dir.files(".seg").empty());
}

// The operating system's own refusal: RLIMIT_FSIZE is what a test can have without a small disk.
TEST(DiskTierFaults, AFileSizeLimitIsAFullDisk) {
  TempDir dir;
  TestBlocks blocks(2, kDiskTestBytes);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{.rlim_cur = 32 << 10, .rlim_max = 32 << 10};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    TierCaller caller;
    auto tier =
        DiskTier::open({.dir = dir.path(), .budget_bytes = 1 << 20, .segment_bytes = 64 << 10}, blocks, caller.wake());
    if (!tier) ::_exit(3);
    caller.store = tier->get();
    const bool is_dropped = caller.put_made(blocks, test_object(1)) == TierOutcome::kDropped;
    ::_exit(is_dropped && (*tier)->stats().dropped(TierDrop::kDiskFull) == 1 ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// ---- kill -9

// The child puts and reads until it is killed; what the parent then finds is whole.
TEST(DiskTierFaults, AHundredKilledWriters) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  TempDir dir;
  TestBlocks blocks(2, kDiskTestBytes);
  constexpr uint64_t kBudget = 200 << 10;
  uint64_t n_hits = 0;
  for (int round = 0; round < 100; ++round) {
    const bool is_sync = random() % 2 == 0;
    const uint64_t first = random() % 300;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      TierCaller caller;
      DiskTierConfig config{.dir = dir.path(), .budget_bytes = kBudget, .segment_bytes = 40 << 10};
      if (is_sync) config.workers = one(make_sync_io());
      auto tier = DiskTier::open(std::move(config), blocks, caller.wake());
      if (!tier) ::_exit(3);
      caller.store = tier->get();
      for (uint64_t n = first;; ++n) (void)caller.put_made(blocks, test_object(n % 300));
    }
    ::usleep(static_cast<useconds_t>(random() % 25'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);

    TierCaller caller;
    auto tier =
        DiskTier::open({.dir = dir.path(), .budget_bytes = kBudget, .segment_bytes = 40 << 10}, blocks, caller.wake());
    ASSERT_TRUE(tier.has_value()) << tier.error().to_string();
    caller.store = tier->get();
    ASSERT_LE(dir.bytes(), kBudget);
    uint64_t n_found = 0;
    for (uint64_t n = 0; n < 300; ++n) {
      if ((*tier)->presence(test_object(n)) != Presence::kYes) continue;
      ASSERT_EQ(caller.get_checked(blocks, test_object(n)), TierOutcome::kDone) << "round " << round;
      ++n_found;
    }
    const TierStats stats = (*tier)->stats();
    ASSERT_EQ(stats.quarantined_segments, 0u);
    ASSERT_EQ(stats.quarantined_objects, 0u);
    ASSERT_EQ(stats.objects, n_found);
    n_hits += n_found;
  }
  EXPECT_GT(n_hits, 500u);
}

}  // namespace
}  // namespace pagoda::kv
