// RedisLink: one connection to a Redis or Valkey server, by hiredis, with a deadline on everything but the system's name resolution.
// Commands are appended, then sent and answered together (pipelined). The peer is not trusted: arrays, more bytes than the caller
// expects, and anything that is not the protocol end the connection.
// Threads: one worker's; `is_closing` may be set by another, and ends what is under way.   Errors: a TierFault (kIo, kTimeout, kRefused);
// the connection is closed then, and last_error() says why. Error replies are replies.   Cost: hiredis copies each string twice.
#pragma once

#include <hiredis/hiredis.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kv/tier.h"
#include "kv/tier_redis_url.h"

namespace pagoda::kv {

struct RedisTimeouts {
  int64_t connect_us = 1'000'000;
  int64_t exchange_us = 2'000'000;  // of all commands sent together
};

struct RedisReply {
  enum class Kind : uint8_t { kText, kInteger, kNil, kError };
  Kind kind = Kind::kNil;
  std::string_view text;  // valid during the call
  int64_t integer = 0;
};

class RedisLink {
 public:
  using OnReply = std::function<void(size_t index, const RedisReply& reply)>;

  RedisLink(RedisAddress address, RedisTimeouts timeouts, const std::atomic<bool>& is_closing);
  ~RedisLink();
  RedisLink(const RedisLink&) = delete;
  RedisLink& operator=(const RedisLink&) = delete;

  bool is_open() const { return context_ != nullptr; }
  // Connects, logs in, selects the database.
  std::optional<TierFault> open();
  void close();

  // Requires an open link.
  void append(std::span<const std::string_view> arguments);
  // Sends what was appended and hands over the replies in order. max_bytes: of all replies.
  std::optional<TierFault> exchange(size_t max_bytes, const OnReply& on_reply);

  const std::string& last_error() const { return last_error_; }

 private:
  std::optional<TierFault> log_in();
  std::optional<TierFault> wait_for(short events, int64_t deadline_us);
  std::optional<TierFault> send_all(int64_t deadline_us);
  std::optional<TierFault> read_some(int64_t deadline_us);
  TierFault fail_with(TierFault fault, std::string why);
  TierFault fail_as_context_says();

  RedisAddress address_;
  RedisTimeouts timeouts_;
  const std::atomic<bool>& is_closing_;
  redisContext* context_ = nullptr;
  std::unique_ptr<redisReplyObjectFunctions> functions_;
  size_t n_appended_ = 0;
  std::string last_error_;
};

}  // namespace pagoda::kv
