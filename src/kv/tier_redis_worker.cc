// The workers of RedisTier: batches from the queues, exchanges with the server, outcomes.
#include <algorithm>
#include <chrono>
#include <csignal>

#include "base/digest.h"
#include "base/log.h"
#include "kv/tier_format.h"
#include "kv/tier_redis.h"

namespace pagoda::kv {
namespace {

constexpr size_t kBatchBytes = size_t{4} << 20;
constexpr size_t kBatchRequests = 32;
constexpr double kWaitMemory = 0.1;  // share of a new sample in read_wait_us

std::string key_of(const TierObject& object) {
  return "pagoda:kv1:" + to_hex(object.key.bytes) + ":" + std::to_string(object.group.value);
}
std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
void append(RedisLink& link, std::initializer_list<std::string_view> arguments) {
  link.append(std::span(arguments.begin(), arguments.size()));
}
bool is_one(const RedisReply& reply) { return reply.kind == RedisReply::Kind::kInteger && reply.integer != 0; }

// hiredis 0.14 writes with write(): a server that goes away must not end the process.
void ignore_broken_pipes() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

void RedisTier::run() {
  ignore_broken_pipes();
  RedisLink link(config_.address, config_.timeouts, is_closing_);
  for (;;) {
    Batch batch = next_batch(link);
    if (batch.empty()) return;
    const bool was_open = link.is_open();
    std::optional<TierFault> fault = carry_out(link, batch);
    // Servers close idle connections: that is no failure yet.
    if (fault == TierFault::kIo && was_open && !is_closing_) fault = carry_out(link, batch);
    finish(batch, fault, link);
  }
}

RedisTier::Batch RedisTier::next_batch(RedisLink& link) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (is_closing_) return {};
    const int64_t now_us = clock_.now_us();
    if (breaker_.take_probe(now_us)) {
      lock.unlock();
      probe(link);
      lock.lock();
    } else if (breaker_.is_open()) {
      const int64_t wait_us = std::max<int64_t>(breaker_.probe_at_us() - now_us, 10'000);
      work_.wait_for(lock, std::chrono::microseconds(wait_us));
    } else {
      Batch late;
      Batch batch = take_batch(now_us, late);
      if (batch.empty() && late.empty()) {
        work_.wait(lock);
        continue;
      }
      lock.unlock();
      for (Request& request : late) {
        count(TierFault::kTimeout);
        end(request);
      }
      if (!batch.empty()) return batch;
      lock.lock();
    }
  }
}

RedisTier::Batch RedisTier::take_batch(int64_t now_us, Batch& late) {
  Batch batch;
  for (std::deque<Request>& queue : queues_) {
    // A share, so that the other workers have something to do too.
    const size_t n_max = std::min((queue.size() + config_.n_workers - 1) / config_.n_workers, kBatchRequests);
    for (size_t n_bytes = 0; batch.size() < n_max && n_bytes < kBatchBytes && !queue.empty(); queue.pop_front()) {
      Request& request = queue.front();
      const bool is_late = now_us - request.queued_us > config_.give_up_us;
      if (!is_late) n_bytes += request.block.bytes;
      (is_late ? late : batch).push_back(std::move(request));
    }
    if (!batch.empty()) break;
  }
  for (const Request& request : batch) {
    if (request.kind == Kind::kGet) reads_.begin(now_us);
    if (request.kind == Kind::kPut) writes_.begin(now_us);
  }
  return batch;
}

void RedisTier::probe(RedisLink& link) {
  const auto fault = link.open();  // asks for a PING
  if (!is_closing_) note(fault, link);
}

void RedisTier::finish(Batch& batch, std::optional<TierFault> fault, const RedisLink& link) {
  const int64_t now_us = clock_.now_us();
  {
    const std::lock_guard lock(mutex_);
    for (const Request& request : batch) {
      RateMeter& meter = request.kind == Kind::kGet ? reads_ : writes_;
      if (request.kind != Kind::kGet && request.kind != Kind::kPut) continue;
      const bool is_done = request.outcome == TierOutcome::kDone;
      if (request.outcome && request.moved_bytes == 0) {
        meter.cancel();
      } else {
        meter.end(now_us, is_done ? request.moved_bytes : 0);
      }
    }
  }
  if (!is_closing_) note(fault, link);
  for (Request& request : batch) end(request);
}

void RedisTier::end(Request& request) {
  const TierOutcome outcome = request.outcome.value_or(is_closing_ ? TierOutcome::kCancelled : TierOutcome::kFailed);
  {
    const std::lock_guard lock(mutex_);
    if (request.kind == Kind::kPut) {
      queued_put_bytes_ -= request.block.bytes;
      if (outcome == TierOutcome::kDone) {
        ++stats_.puts;
        stats_.put_bytes += request.moved_bytes;
      }
    }
    if (request.kind == Kind::kGet && outcome == TierOutcome::kDone) {
      const auto wait_us = static_cast<double>(clock_.now_us() - request.queued_us);
      stats_.read_wait_us += (stats_.hits == 0 ? 1 : kWaitMemory) * (wait_us - stats_.read_wait_us);
      ++stats_.hits;
      stats_.hit_bytes += request.moved_bytes;
    }
    stats_.misses += request.kind == Kind::kGet && outcome == TierOutcome::kAbsent;
  }
  if (request.kind == Kind::kErase) return;
  const TierVerb verb = request.kind == Kind::kAsk   ? TierVerb::kAsk
                        : request.kind == Kind::kGet ? TierVerb::kGet
                                                     : TierVerb::kPut;
  done_.post({.ticket = request.ticket, .verb = verb, .outcome = outcome, .is_present = std::move(request.is_present)});
}

void RedisTier::note(std::optional<TierFault> fault, const RedisLink& link) {
  if (!fault) {
    std::unique_lock lock(mutex_);
    const bool has_closed = breaker_.succeeded();
    lock.unlock();
    if (has_closed) LOG_INFO("kv redis tier: {} answers again", config_.address.to_string());
    return;
  }
  Batch failed;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.faults[static_cast<size_t>(*fault)];
    if (!breaker_.failed(clock_.now_us())) return;
    for (std::deque<Request>& queue : queues_) {
      std::ranges::move(queue, std::back_inserter(failed));
      queue.clear();
    }
    const auto n_puts = std::ranges::count(failed, Kind::kPut, &Request::kind);
    stats_.drops[static_cast<size_t>(TierDrop::kUnavailable)] += static_cast<uint64_t>(n_puts);
  }
  LOG_WARN("kv redis tier: {} is left alone for now: {}", config_.address.to_string(), link.last_error());
  for (Request& request : failed) end(request);
}

void RedisTier::count(TierFault fault) {
  const std::lock_guard lock(mutex_);
  ++stats_.faults[static_cast<size_t>(fault)];
}

std::optional<TierFault> RedisTier::carry_out(RedisLink& link, Batch& batch) {
  if (!link.is_open()) {
    if (const auto fault = link.open()) return fault;
  }
  switch (batch.front().kind) {
    case Kind::kAsk:
      return ask_all(link, batch);
    case Kind::kGet:
      return get_all(link, batch);
    case Kind::kPut:
      return put_all(link, batch);
    case Kind::kErase:
      break;
  }
  std::vector<TierObject> objects;
  for (Request& request : batch) objects.push_back(request.objects.front());
  return unlink_all(link, objects);
}

std::optional<TierFault> RedisTier::ask_all(RedisLink& link, Batch& batch) {
  for (Request& request : batch) {
    request.is_present.clear();
    for (const TierObject& object : request.objects) append(link, {"EXISTS", key_of(object)});
  }
  auto request = batch.begin();
  const auto fault = link.exchange(0, [&](size_t, const RedisReply& reply) {
    while (request->is_present.size() == request->objects.size()) ++request;
    request->is_present.push_back(is_one(reply));
  });
  if (fault) return fault;
  for (Request& asked : batch) asked.outcome = TierOutcome::kDone;
  return std::nullopt;
}

std::optional<TierFault> RedisTier::get_all(RedisLink& link, Batch& batch) {
  std::vector<Request*> pending;
  std::vector<TierObject> refused;
  size_t max_bytes = 0;
  for (Request& request : batch) {
    if (request.outcome) continue;
    pending.push_back(&request);
    // One byte more than it should have: what is longer is not ours.
    const size_t n_bytes = kTierValueHeaderBytes + request.block.bytes + 1;
    append(link, {"GETRANGE", key_of(request.objects.front()), "0", std::to_string(n_bytes - 1)});
    max_bytes += n_bytes;
  }
  const auto fault = link.exchange(max_bytes, [&](size_t i, const RedisReply& reply) {
    take_value(*pending[i], reply);
    if (pending[i]->outcome == TierOutcome::kCorrupt) refused.push_back(pending[i]->objects.front());
  });
  return fault || refused.empty() ? fault : unlink_all(link, refused);
}

void RedisTier::take_value(Request& request, const RedisReply& reply) {
  const TierObject& object = request.objects.front();
  if (reply.kind == RedisReply::Kind::kText && reply.text.empty()) {
    request.outcome = TierOutcome::kAbsent;
    return;
  }
  if (reply.kind != RedisReply::Kind::kText) {  // an error: another type's key, no permission
    count(TierFault::kRefused);
    request.outcome = TierOutcome::kFailed;
    return;
  }
  const auto parsed = parse_tier_value(std::as_bytes(std::span(reply.text)), object, request.block.bytes);
  if (const auto* fault = std::get_if<TierFault>(&parsed)) {
    count(*fault);
    const std::lock_guard lock(mutex_);
    ++stats_.quarantined_objects;
    request.outcome = TierOutcome::kCorrupt;
    return;
  }
  io_.copy_in(request.block.model, object.group, request.block.block, std::get<std::span<const std::byte>>(parsed));
  request.moved_bytes = request.block.bytes;
  request.outcome = TierOutcome::kDone;
}

std::optional<TierFault> RedisTier::put_all(RedisLink& link, Batch& batch) {
  std::vector<Request*> pending;
  for (Request& request : batch) {
    if (request.outcome) continue;
    pending.push_back(&request);
    append(link, {"EXISTS", key_of(request.objects.front())});
  }
  std::vector<uint8_t> is_there(pending.size());
  if (const auto fault = link.exchange(0, [&](size_t i, const RedisReply& r) { is_there[i] = is_one(r); }))
    return fault;

  std::vector<Request*> sent;
  std::vector<std::byte> value;
  for (size_t i = 0; i < pending.size(); ++i) {
    Request& request = *pending[i];
    if (!is_there[i]) {
      if (append_set(link, request, value)) sent.push_back(&request);
    } else if (config_.ttl_seconds > 0) {
      append(link, {"EXPIRE", key_of(request.objects.front()), std::to_string(config_.ttl_seconds)});
      sent.push_back(&request);
    } else {
      request.outcome = TierOutcome::kDone;
    }
  }
  return link.exchange(0, [&](size_t i, const RedisReply& reply) { take_set(*sent[i], reply); });
}

bool RedisTier::append_set(RedisLink& link, Request& request, std::vector<std::byte>& value) {
  const TierObject& object = request.objects.front();
  value.resize(kTierValueHeaderBytes + request.block.bytes);
  const std::span<std::byte> payload = std::span(value).subspan(kTierValueHeaderBytes);
  io_.copy_out(request.block.model, object.group, request.block.block, payload);
  const uint32_t crc = crc32c(payload);
  if (request.crc && *request.crc != crc) {
    count(TierFault::kStale);
    request.outcome = TierOutcome::kCorrupt;
    return false;
  }
  std::ranges::copy(encode_tier_value_header({.object = object, .bytes = payload.size(), .crc = crc}), value.begin());
  if (config_.ttl_seconds > 0) {
    append(link, {"SET", key_of(object), text_of(value), "EX", std::to_string(config_.ttl_seconds)});
  } else {
    append(link, {"SET", key_of(object), text_of(value)});
  }
  request.moved_bytes = payload.size();
  return true;
}

void RedisTier::take_set(Request& request, const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kError) {
    request.outcome = TierOutcome::kDone;
    return;
  }
  request.moved_bytes = 0;
  if (reply.text.starts_with("OOM")) {
    const std::lock_guard lock(mutex_);
    ++stats_.drops[static_cast<size_t>(TierDrop::kNoRoom)];
    request.outcome = TierOutcome::kDropped;
    return;
  }
  count(TierFault::kRefused);
  request.outcome = TierOutcome::kFailed;
}

std::optional<TierFault> RedisTier::unlink_all(RedisLink& link, std::span<const TierObject> objects) {
  for (const TierObject& object : objects) append(link, {"UNLINK", key_of(object)});
  return link.exchange(0, [](size_t, const RedisReply&) {});
}

}  // namespace pagoda::kv
