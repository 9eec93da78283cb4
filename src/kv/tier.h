// Tiers: where sealed blocks sleep outside RAM, and how the engine reaches them without ever waiting.
//
//   engine thread                                              tier worker
//   put(ticket, object, block)  -> bounded queue ->            BlockIo::copy_out, CRC32C, write           -> TierDone{ticket, kDone}
//   get(ticket, object, block)  -> bounded queue ->            read, CRC32C, BlockIo::copy_in             -> TierDone{ticket, kDone}
//   ask(ticket, objects)        -> (a tier without an index)   one round trip                             -> TierDone{ticket, kDone}
//   take_done(out)              <- completions; `wake` is called once for each, by the worker
//
// An object is one block of one attention group. Its key is a SHA-256 chain over all that decides its bytes (tier_key), so equal keys
// mean equal bytes, in this process, after a restart and on another server; a foreign block is never found, whatever a tier holds.
// Between put or get and its completion the block is the store's: a put only reads it, a get only writes it, and nobody else writes it.
// Best effort: a full queue, a slow tier or a full disk drops puts, counts them, and nobody waits. A get either copied in the very bytes
// that were put or says why not, and then has not touched the block.
//
// Threads: put, get, ask, erase, clear, presence and take_done from the engine thread; stats() from any; `wake` and BlockIo are called
// by workers. The destructor cancels what is queued, waits for what is being read or written, and after it no block is touched.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/token_id.h"
#include "kv/ids.h"

namespace pagoda::kv {

struct TierKey {
  std::array<std::byte, 32> bytes{};
  friend bool operator==(const TierKey&, const TierKey&) = default;
};

// `root`: model file digest, tokenizer, rope, layout id and format table, arithmetic, numerics revision, namespace; each of fixed length
// or length-prefixed by the caller.
TierKey tier_root(std::span<const std::byte> root);
// Of a model's identity (Tiering::set_identity) and a namespace.
TierKey tier_root(const Sha256& identity, const CacheNamespace& cache_namespace);
// The key of the block of these tokens behind `parent`: a block's, or the root's.
TierKey tier_key(const TierKey& parent, std::span<const TokenId, kBlockTokens> tokens);

struct TierObject {
  TierKey key;
  GroupId group;
  friend bool operator==(const TierObject&, const TierObject&) = default;
};
// Keys are SHA-256: any 8 bytes of one are a hash.
struct TierObjectHash {
  size_t operator()(const TierObject& object) const noexcept;
};

// What a block serves: every later token (of groups with full attention), or replay points only (of sliding windows).
enum class TierUse : uint8_t { kContext, kReplay };

// A block of the arena, for BlockIo.
struct TierBlock {
  ModelId model;
  BlockId block;
  size_t bytes = 0;  // the group's block_bytes
  TierUse use = TierUse::kContext;
};

enum class TierVerb : uint8_t { kPut, kGet, kAsk, kClear };
enum class TierOutcome : uint8_t {
  kDone,
  kAbsent,  // get: not there (any more)
  kCorrupt,  // get: there, but not the bytes that were put; the object is quarantined.  put: the block is not what its CRC says
  kFailed,     // the device, the peer or the time-out said no
  kDropped,    // put: no room, or the disk is full
  kCancelled,  // the store is closing
};
struct TierDone {
  TicketId ticket{};
  TierVerb verb = TierVerb::kGet;
  TierOutcome outcome = TierOutcome::kDone;
  std::vector<uint8_t> is_present{};  // kAsk: by object, 1 where it is there
};

enum class Presence : uint8_t { kNo, kYes, kUnknown };

enum class TierDrop : uint8_t {
  kQueueFull,
  kDiskFull,
  kNoRoom,
  kUnavailable
};  // why a put was not even tried, or given up
inline constexpr size_t kTierDrops = 4;
enum class TierFault : uint8_t {
  kIo,       // the operating system or the peer said no
  kTimeout,  // the peer did not answer in time
  kCorrupt,  // a payload's CRC32C is wrong
  kRefused,  // a header, record, reply or version is not ours
  kStale,    // a put's block did not have the CRC it was sealed with
};
inline constexpr size_t kTierFaults = 5;
std::string_view to_string(TierDrop drop);
std::string_view to_string(TierFault fault);

// Counters are since the store was opened.
struct TierStats {
  uint64_t budget_bytes = 0;  // 0: not ours to bound (Redis)
  uint64_t used_bytes = 0;    // of the budget
  uint64_t replay_bytes = 0;  // of these, for replay points
  uint64_t objects = 0;
  uint64_t hits = 0, misses = 0, puts = 0;  // completed
  uint64_t hit_bytes = 0, put_bytes = 0;
  std::array<uint64_t, kTierDrops> drops{};    // by TierDrop
  std::array<uint64_t, kTierFaults> faults{};  // by TierFault
  uint64_t reclaimed_segments = 0, reclaimed_objects = 0;
  uint64_t quarantined_segments = 0, quarantined_objects = 0;
  uint64_t breaker_openings = 0, probes = 0;
  uint64_t open_breakers = 0;  // now
  uint64_t queued_put_bytes = 0;
  double read_bytes_per_s = 0, write_bytes_per_s = 0;  // while busy, moving averages; 0: nothing measured yet
  double read_wait_us = 0;                             // from get to completion, moving average

  // About how long a get of this many bytes takes, to compare with recomputing them. 0: nothing measured yet, so try.
  double expected_read_us(size_t bytes) const {
    return read_bytes_per_s > 0 ? static_cast<double>(bytes) * 1e6 / read_bytes_per_s : 0;
  }
  uint64_t dropped(TierDrop drop) const { return drops[static_cast<size_t>(drop)]; }
  uint64_t faulted(TierFault fault) const { return faults[static_cast<size_t>(fault)]; }
};

// The functions that return bool say whether a completion with this ticket will follow.
class TierStore {
 public:
  virtual ~TierStore() = default;

  // O(1), no I/O. kUnknown: ask().
  virtual Presence presence(const TierObject& object) const = 0;
  // Finds out about all of them with one round trip. A tier that has an index answers without one.
  virtual bool ask(TicketId ticket, std::span<const TierObject> objects) = 0;

  // `crc`: CRC32C of the block as it was sealed, if known; a block that differs is not stored. False: dropped and counted, or there already.
  virtual bool put(TicketId ticket, const TierObject& object, const TierBlock& block, std::optional<uint32_t> crc) = 0;
  // False: not there, or cannot be tried now.
  virtual bool get(TicketId ticket, const TierObject& object, const TierBlock& block) = 0;

  // The object is not found any more. Its bytes stay where they are until their room is used again.
  virtual void erase(const TierObject& object) = 0;
  // Nothing is found any more; the completion says that the bytes are gone too. False where the tier is not ours to clear.
  virtual bool clear(TicketId ticket) = 0;

  // Appends the completions since the last call.
  virtual void take_done(std::vector<TierDone>& out) = 0;
  virtual TierStats stats() const = 0;
};

// What workers have finished and the engine thread has not fetched.   Threads: post from any, take from one.
class TierDoneQueue {
 public:
  // `wake`: must not block, and must not call the store.
  explicit TierDoneQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  void post(TierDone done);
  void take(std::vector<TierDone>& out);

 private:
  std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<TierDone> done_;  // guarded by mutex_
};

}  // namespace pagoda::kv
