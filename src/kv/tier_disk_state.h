// DiskState: what a DiskTier's engine thread and its workers share.
// Threads: `mutex` guards what is below it; no I/O and no allocation of more than a queue's growth happens under it. `make_mutex` lets one
// worker at a time delete and make segment files, and is taken before `mutex`.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_set>

#include "base/clock.h"
#include "kv/tier_dir.h"
#include "kv/tier_disk.h"
#include "kv/tier_meter.h"

namespace pagoda::kv {

struct DiskRequest {
  enum class Kind : uint8_t { kPut, kGet, kErase, kClear };
  Kind kind = Kind::kGet;
  TicketId ticket{};
  TierObject object{};
  TierBlock block{};
  std::optional<uint32_t> crc{};
  TierCatalogue::Place place{};        // get, erase: pinned
  SlotRecord record{};                 // get: what the place holds
  std::vector<TierGarbage> garbage{};  // clear
  int64_t queued_us = 0;
};

struct DiskState {
  DiskState(DiskTierConfig c, TierDir d, BlockIo& b, std::function<void()> wake)
      : config(std::move(c)),
        dir(std::move(d)),
        io(b),
        done(std::move(wake)),
        catalogue(config.budget_bytes, config.replay_budget_bytes.value_or(config.budget_bytes / 4)),
        pace(config.write_bytes_per_s) {}

  const DiskTierConfig config;
  const TierDir dir;
  BlockIo& io;
  const SteadyClock steady;
  const Clock& clock = config.clock != nullptr ? *config.clock : steady;
  TierDoneQueue done;

  std::mutex make_mutex;

  mutable std::mutex mutex;
  std::condition_variable work;
  bool is_closing = false;
  std::deque<DiskRequest> urgent;  // gets, erases, clears
  std::deque<DiskRequest> puts;
  struct Clear {
    TicketId ticket;
    bool are_gone;
  };
  std::vector<Clear> clears;                               // that wait for doomed segments
  size_t n_going = 0;                                      // doomed files that are being deleted
  std::unordered_set<TierObject, TierObjectHash> writing;  // put, not finished, not erased since
  size_t queued_put_bytes = 0;                             // accepted and not finished
  TierCatalogue catalogue;
  uint64_t next_segment_id = 0;
  WritePace pace;
  RateMeter reads, writes;
  int64_t paused_until_us = 0;  // puts are refused: the disk said no
  TierDrop pause_reason = TierDrop::kDiskFull;
  TierStats stats;  // what the others do not count

  // ---- under `mutex`
  void count(TierFault fault) { ++stats.faults[static_cast<size_t>(fault)]; }
  void count(TierDrop drop) { ++stats.drops[static_cast<size_t>(drop)]; }
  void pause_puts(TierDrop reason) {
    paused_until_us = clock.now_us() + config.pause_us;
    pause_reason = reason;
  }
};

}  // namespace pagoda::kv
