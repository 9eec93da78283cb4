// DiskTier: a TierStore in a folder of segment files (tier_format.h, tier_dir.h), with a RAM index of all that is in it.
//
//   put   queue (bounded in bytes) -> pace (bytes/s) -> slot of an open segment -> payload written -> record written -> found by presence()
//   get   queue, before puts       -> payload read   -> CRC32C -> copied in
//
// Guarantees. Only whole objects are found after a process was killed at any moment: a record is written when its payload has been, and a
// slot is written once. A payload whose CRC32C is wrong is never copied in: its slot is marked bad, for ever. All files together never
// exceed the budget by a byte: victims are deleted before a new segment is made, whole segments, those used longest ago first, and replay points
// of sliding windows have a part of it to themselves.
// A full disk stops puts for pause_us and counts them; gets go on. Nothing is synced: after a power cut, blocks that did not reach the
// disk fail their CRC and are recomputed.
//
// Threads: as tier.h says; `n` workers (disk_worker) share DiskState (tier_disk_state.h), each with its own DiskIo.
// Errors: open() says why a folder cannot be used; later ones are outcomes and counters.
// Cost: presence, put, get, erase O(1) under a lock that no I/O is done under; RAM about 200 B an object.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "kv/block_io.h"
#include "kv/tier.h"
#include "kv/tier_io.h"

namespace pagoda::kv {

struct DiskState;

struct DiskTierConfig {
  std::string dir{};
  uint64_t budget_bytes = 0;
  std::optional<uint64_t>
      replay_budget_bytes{};              // of it, for replay points (tier_catalogue.h); none: a quarter, as in RAM
  uint64_t write_bytes_per_s = 0;         // 0: as fast as it goes
  size_t queue_bytes = size_t{64} << 20;  // of puts accepted and not finished
  uint64_t segment_bytes = 0;             // about; 0: a 64th of the budget
  int64_t pause_us = 5'000'000;           // without puts, after the disk was full or broken
  const Clock* clock = nullptr;           // outlives the tier; none: a SteadyClock
  std::vector<std::unique_ptr<DiskIo>>
      workers{};  // one each; none: io_uring if the kernel lets us, else four with pread
};

class DiskTier final : public TierStore {
 public:
  // `io` and `wake` must outlive the tier.
  static Result<std::unique_ptr<DiskTier>> open(DiskTierConfig config, BlockIo& io, std::function<void()> wake);
  ~DiskTier() override;
  // Makes the folder if it is not there, and says why it cannot be used.
  static Status check_dir(const std::string& dir);
  // Empties a folder that no process uses.
  static Status clear_dir(const std::string& dir);

  Presence presence(const TierObject& object) const override;
  bool ask(TicketId ticket, std::span<const TierObject> objects) override;
  bool put(TicketId ticket, const TierObject& object, const TierBlock& block, std::optional<uint32_t> crc) override;
  bool get(TicketId ticket, const TierObject& object, const TierBlock& block) override;
  void erase(const TierObject& object) override;
  bool clear(TicketId ticket) override;
  void take_done(std::vector<TierDone>& out) override;
  TierStats stats() const override;

  // Of the RAM index; O(slots) under the lock: tests.
  Status check_integrity() const;
  // What moves the bytes: "io_uring" or "pread".
  std::string_view io_name() const { return io_name_; }

 private:
  explicit DiskTier(std::unique_ptr<DiskState> state);

  std::unique_ptr<DiskState> state_;
  std::string io_name_;
  std::vector<std::thread> workers_;
};

}  // namespace pagoda::kv
