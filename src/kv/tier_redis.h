// RedisTier: a TierStore in a Redis or Valkey server that several servers may share.
//
//   key     pagoda:kv1:<64 hex of the TierKey>:<group>         value   tier_format.h: header with key and CRC32C, then the block
//   get     GETRANGE key 0 <length we want>, pipelined         never more bytes than the block has, whatever the value holds
//   put     EXISTS, then SET (EX ttl) or EXPIRE, pipelined     a block that another server stored is not sent again
//   ask     EXISTS, pipelined                                  presence() is kUnknown, or kNo while the breaker is open
//
// The server is not trusted and need not be there: a value that is not whole and ours is refused, counted and unlinked; errors and
// time-outs open a circuit breaker (tier_breaker.h), and while it is open everything is refused at once and a PING now and then probes.
//
// Threads: as tier.h says; `n_workers` threads, each with its own RedisLink.   Errors: outcomes and counters; an unreachable server is
// logged once.   Cost: put, get, ask O(1) and a lock; none waits. A request that nobody got to in time fails (give_up_us).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "kv/block_io.h"
#include "kv/tier.h"
#include "kv/tier_breaker.h"
#include "kv/tier_meter.h"
#include "kv/tier_redis_link.h"

namespace pagoda::kv {

struct RedisTierConfig {
  RedisAddress address{};
  int64_t ttl_seconds = 0;  // 0: until the server evicts it
  RedisTimeouts timeouts{};
  int64_t give_up_us = 2'000'000;         // in the queue
  size_t queue_bytes = size_t{64} << 20;  // of puts accepted and not finished
  size_t n_workers = 2;
  int breaker_failures = 3;
  int64_t breaker_open_us = 1'000'000;
};

class RedisTier final : public TierStore {
 public:
  // `io` must outlive the tier. Connects when there is something to do.
  RedisTier(RedisTierConfig config, BlockIo& io, std::function<void()> wake);
  ~RedisTier() override;

  Presence presence(const TierObject& object) const override;
  bool ask(TicketId ticket, std::span<const TierObject> objects) override;
  bool put(TicketId ticket, const TierObject& object, const TierBlock& block, std::optional<uint32_t> crc) override;
  bool get(TicketId ticket, const TierObject& object, const TierBlock& block) override;
  void erase(const TierObject& object) override;
  bool clear(TicketId) override { return false; }
  void take_done(std::vector<TierDone>& out) override { done_.take(out); }
  TierStats stats() const override;

 private:
  enum class Kind : uint8_t { kAsk, kGet, kErase, kPut };
  static constexpr size_t kKinds = 4;
  struct Request {
    Kind kind = Kind::kGet;
    TicketId ticket{};
    std::vector<TierObject> objects{};  // one, but for kAsk
    TierBlock block{};
    std::optional<uint32_t> crc{};
    int64_t queued_us = 0;
    std::optional<TierOutcome> outcome{};  // once it is known
    size_t moved_bytes = 0;
    std::vector<uint8_t> is_present{};
  };
  using Batch = std::vector<Request>;  // of one kind

  bool enqueue(Request request);

  // ---- a worker's (tier_redis_worker.cc)
  void run();
  // Empty: the tier is closing.
  Batch next_batch(RedisLink& link);
  Batch take_batch(int64_t now_us, Batch& late);
  void probe(RedisLink& link);
  void finish(Batch& batch, std::optional<TierFault> fault, const RedisLink& link);
  void end(Request& request);
  void note(std::optional<TierFault> fault, const RedisLink& link);
  void count(TierFault fault);

  // Exchanges for the requests without outcome. A fault: those that have none yet failed.
  std::optional<TierFault> carry_out(RedisLink& link, Batch& batch);
  std::optional<TierFault> ask_all(RedisLink& link, Batch& batch);
  std::optional<TierFault> get_all(RedisLink& link, Batch& batch);
  std::optional<TierFault> put_all(RedisLink& link, Batch& batch);
  std::optional<TierFault> unlink_all(RedisLink& link, std::span<const TierObject> objects);
  void take_value(Request& request, const RedisReply& reply);
  bool append_set(RedisLink& link, Request& request, std::vector<std::byte>& value);
  void take_set(Request& request, const RedisReply& reply);

  const RedisTierConfig config_;
  BlockIo& io_;
  const SteadyClock clock_;
  TierDoneQueue done_;
  std::atomic<bool> is_closing_{false};

  mutable std::mutex mutex_;
  std::condition_variable work_;
  // ---- guarded by mutex_
  std::array<std::deque<Request>, kKinds> queues_;  // by Kind, the most urgent first
  size_t queued_put_bytes_ = 0;
  CircuitBreaker breaker_;
  RateMeter reads_, writes_;
  TierStats stats_;  // what the others do not count
  // ----
  std::vector<std::thread> workers_;
};

}  // namespace pagoda::kv
