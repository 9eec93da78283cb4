// What kv::Tiering counts, and a tier's own counters (tier.h): plain data for those who only look.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kv/tier.h"

namespace pagoda::kv {

inline constexpr size_t kMaxTiers = 2;  // disk, Redis

// Counters are since the start.
struct TieringStats {
  uint64_t stored_blocks = 0;  // by a tier at least
  uint64_t stored_bytes = 0;
  uint64_t unstored_blocks = 0;  // no room in staging, or no tier would have them
  uint64_t staged_bytes = 0;     // now
  uint64_t asks = 0;
  uint64_t loads = 0;          // begun
  uint64_t loads_cut = 0;      // ended early: a block was gone, or did not come
  uint64_t loads_corrupt = 0;  // of those: not the bytes that were put
  uint64_t loads_slow = 0;     // not begun: computing is faster
  uint64_t loads_no_room = 0;  // not begun: no room in RAM
  uint64_t loaded_blocks = 0;
  uint64_t unused_blocks = 0;                         // loaded, but computed or evicted from under them meanwhile
  uint64_t load_wait_us = 0;                          // of all loads, from their beginning to their end
  std::array<uint64_t, kMaxTiers> loaded_bytes{};     // by tier
  std::array<uint64_t, kMaxTiers> restored_tokens{};  // by tier: of blocks that a sequence then used
};

}  // namespace pagoda::kv
