// A disk tier in a folder of its own, and a caller that waits.
#pragma once

#include "kv/test_tier_world.h"
#include "kv/tier_disk.h"

namespace pagoda::kv {

inline constexpr size_t kDiskTestBytes = 5000;  // slots of 8192

struct DiskWorld {
  explicit DiskWorld(DiskTierConfig c = {}) : blocks(64, kDiskTestBytes) { open(std::move(c)); }

  void open(DiskTierConfig config = {}) {
    caller.store = nullptr;
    tier.reset();
    config.dir = dir.path();
    if (config.budget_bytes == 0) config.budget_bytes = 1 << 20;
    if (config.segment_bytes == 0) config.segment_bytes = 64 << 10;
    auto opened = DiskTier::open(std::move(config), blocks, caller.wake());
    ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
    tier = std::move(*opened);
    caller.store = tier.get();
  }
  std::optional<TierOutcome> put(uint64_t n) { return caller.put_made(blocks, test_object(n)); }
  std::optional<TierOutcome> get(uint64_t n) { return caller.get_checked(blocks, test_object(n)); }
  bool has(uint64_t n) const { return tier->presence(test_object(n)) == Presence::kYes; }

  TempDir dir;
  TestBlocks blocks;
  TierCaller caller;
  std::unique_ptr<DiskTier> tier;
};

}  // namespace pagoda::kv
