#include "kv/tier_redis.h"

#include "kv/tier_format.h"

namespace pagoda::kv {
namespace {

constexpr size_t kMaxQueuedAsks = 1024;

}  // namespace

RedisTier::RedisTier(RedisTierConfig config, BlockIo& io, std::function<void()> wake)
    : config_(std::move(config)),
      io_(io),
      done_(std::move(wake)),
      breaker_(config_.breaker_failures, config_.breaker_open_us) {
  for (size_t i = 0; i < config_.n_workers; ++i) workers_.emplace_back([this] { run(); });
}

RedisTier::~RedisTier() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Presence RedisTier::presence(const TierObject&) const {
  const std::lock_guard lock(mutex_);
  return breaker_.is_open() ? Presence::kNo : Presence::kUnknown;
}

bool RedisTier::enqueue(Request request) {
  request.queued_us = clock_.now_us();
  {
    const std::lock_guard lock(mutex_);
    std::deque<Request>& queue = queues_[static_cast<size_t>(request.kind)];
    const bool is_put = request.kind == Kind::kPut;
    if (breaker_.is_open()) {
      if (is_put) ++stats_.drops[static_cast<size_t>(TierDrop::kUnavailable)];
      return false;
    }
    if (is_put && queued_put_bytes_ + request.block.bytes > config_.queue_bytes) {
      ++stats_.drops[static_cast<size_t>(TierDrop::kQueueFull)];
      return false;
    }
    if (request.kind == Kind::kAsk && queue.size() >= kMaxQueuedAsks) return false;
    if (is_put) queued_put_bytes_ += request.block.bytes;
    queue.push_back(std::move(request));
  }
  work_.notify_one();
  return true;
}

bool RedisTier::ask(TicketId ticket, std::span<const TierObject> objects) {
  return enqueue({.kind = Kind::kAsk, .ticket = ticket, .objects = {objects.begin(), objects.end()}});
}

bool RedisTier::get(TicketId ticket, const TierObject& object, const TierBlock& block) {
  return enqueue({.kind = Kind::kGet, .ticket = ticket, .objects = {object}, .block = block});
}

bool RedisTier::put(TicketId ticket, const TierObject& object, const TierBlock& block, std::optional<uint32_t> crc) {
  return enqueue({.kind = Kind::kPut, .ticket = ticket, .objects = {object}, .block = block, .crc = crc});
}

void RedisTier::erase(const TierObject& object) { (void)enqueue({.kind = Kind::kErase, .objects = {object}}); }

TierStats RedisTier::stats() const {
  const std::lock_guard lock(mutex_);
  TierStats stats = stats_;
  stats.breaker_openings = breaker_.n_openings();
  stats.open_breakers = breaker_.is_open() ? 1 : 0;
  stats.probes = breaker_.n_probes();
  stats.queued_put_bytes = queued_put_bytes_;
  stats.read_bytes_per_s = reads_.bytes_per_s();
  stats.write_bytes_per_s = writes_.bytes_per_s();
  return stats;
}

}  // namespace pagoda::kv
