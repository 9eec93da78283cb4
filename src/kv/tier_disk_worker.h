// DiskWorker: one thread that carries out a DiskTier's requests, as many at once as its DiskIo can.
//
//   get     payload read  -> CRC32C -> copied in                              else the record is overwritten as bad
//   put     copied out -> CRC32C -> payload written -> record written -> published
//   erase   record overwritten as free           clear   files deleted
//
// Owns: a buffer for each transfer under way.   Threads: run() is the thread's; DiskState is shared.   Errors: outcomes and counters.
#pragma once

#include <optional>
#include <variant>

#include "kv/tier_disk_state.h"

namespace pagoda::kv {

class DiskWorker {
 public:
  DiskWorker(DiskState& state, std::unique_ptr<DiskIo> io);
  // Until the state is closing and what this worker began is done.
  void run();

 private:
  // What a transfer's present operation does.
  enum class Stage : uint8_t { kReadPayload, kWritePayload, kWriteRecord, kEraseRecord };
  struct Transfer {
    DiskRequest request;
    Stage stage = Stage::kReadPayload;
    DiskOp op;  // what is left of it
    std::vector<std::byte> buffer;
    std::array<std::byte, kSlotRecordBytes> record{};
    bool is_erased = false;  // put: erased since it was queued
  };
  enum class Idle : uint8_t { kWait, kReturn };

  std::optional<DiskRequest> next_request(Idle idle);
  std::optional<DiskRequest> pop(int64_t now_us);
  void begin(DiskRequest request);
  void begin_get(Transfer& transfer);
  void begin_put(Transfer& transfer);
  void begin_erase(Transfer& transfer, SlotState state);
  void clear(DiskRequest request);
  void end_clears();

  void submit(Transfer& transfer, Stage stage, DiskOp::Kind kind, uint64_t offset, std::span<std::byte> bytes);
  void advance(DiskResult result);
  void next_stage(Transfer& transfer);
  void fail_transfer(Transfer& transfer, int error);

  void check_payload(Transfer& transfer);
  void publish(Transfer& transfer);
  // Ends: counters, pins, the completion.
  void end_get(Transfer& transfer, TierOutcome outcome);
  void end_put(Transfer& transfer, TierOutcome outcome);
  void let_go(Transfer& transfer);
  void stamp(Segment& segment);
  void count(TierFault fault);
  void count(TierDrop drop);
  void pause_puts(TierDrop reason);

  // A pinned slot, or why there is none.
  std::variant<TierCatalogue::Place, TierDrop> find_slot(const TierBlock& block);
  std::variant<TierCatalogue::Place, TierDrop> make_segment(uint64_t slot_bytes, TierUse use);
  bool delete_files(std::vector<TierGarbage> garbage);

  DiskState& state_;
  std::unique_ptr<DiskIo> io_;
  std::vector<std::unique_ptr<Transfer>> idle_;
  std::vector<std::unique_ptr<Transfer>> active_;
};

}  // namespace pagoda::kv
