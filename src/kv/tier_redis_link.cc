#include "kv/tier_redis_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/clock.h"

namespace pagoda::kv {
namespace {

constexpr size_t kErrorBytes = 4096;  // an error reply may take the place of an answer
constexpr int64_t kSliceUs = 50'000;  // how often a wait looks whether the store is closing

// No command of ours is answered by an array; a hostile one could be of any length. (hiredis 0.14 counts in int, 1.0 in size_t.)
template <typename Count>
void* refuse_array(const redisReadTask*, Count) {
  return nullptr;
}

RedisReply view(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      return {.kind = RedisReply::Kind::kText, .text = {reply.str, static_cast<size_t>(reply.len)}};
    case REDIS_REPLY_INTEGER:
      return {.kind = RedisReply::Kind::kInteger, .text = {}, .integer = reply.integer};
    case REDIS_REPLY_ERROR:
      return {.kind = RedisReply::Kind::kError, .text = {reply.str, static_cast<size_t>(reply.len)}};
    default:
      return {};
  }
}

int64_t now_us() { return SteadyClock().now_us(); }

}  // namespace

RedisLink::RedisLink(RedisAddress address, RedisTimeouts timeouts, const std::atomic<bool>& is_closing)
    : address_(std::move(address)), timeouts_(timeouts), is_closing_(is_closing) {}

RedisLink::~RedisLink() { close(); }

void RedisLink::close() {
  if (context_ != nullptr) ::redisFree(context_);
  context_ = nullptr;
  n_appended_ = 0;
}

TierFault RedisLink::fail_with(TierFault fault, std::string why) {
  last_error_ = std::move(why);
  close();
  return fault;
}

TierFault RedisLink::fail_as_context_says() {
  const bool is_protocol = context_->err == REDIS_ERR_PROTOCOL || context_->err == REDIS_ERR_OOM;
  const bool is_array = context_->err == REDIS_ERR_OOM;  // refuse_array
  return fail_with(is_protocol ? TierFault::kRefused : TierFault::kIo,
                   is_array ? "a reply of a kind that was not asked for" : context_->errstr);
}

std::optional<TierFault> RedisLink::open() {
  close();
  context_ = ::redisConnectNonBlock(address_.host.c_str(), address_.port);
  if (context_ == nullptr) return fail_with(TierFault::kIo, "out of memory");
  if (context_->err != 0) return fail_as_context_says();
  functions_ = std::make_unique<redisReplyObjectFunctions>(*context_->reader->fn);
  functions_->createArray = refuse_array;
  context_->reader->fn = functions_.get();
  if (const auto fault = wait_for(POLLOUT, now_us() + timeouts_.connect_us)) return fault;
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(context_->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return fail_with(TierFault::kIo, std::string("cannot connect: ") + std::strerror(error));
  return log_in();
}

std::optional<TierFault> RedisLink::log_in() {
  std::vector<std::string_view> login{"AUTH"};
  if (!address_.user.empty()) login.push_back(address_.user);
  login.push_back(address_.password);
  if (!address_.password.empty()) append(login);
  const std::string db = std::to_string(address_.db);
  if (address_.db != 0) append(std::array<std::string_view, 2>{"SELECT", db});
  append(std::array<std::string_view, 1>{"PING"});
  std::string refusal;
  const auto fault = exchange(4096, [&](size_t, const RedisReply& reply) {
    if (reply.kind == RedisReply::Kind::kText) return;
    if (refusal.empty())
      refusal = reply.kind == RedisReply::Kind::kError ? reply.text : "not the answer of a Redis server";
  });
  if (fault) return fault;
  if (!refusal.empty()) return fail_with(TierFault::kRefused, refusal.substr(0, 200));
  return std::nullopt;
}

void RedisLink::append(std::span<const std::string_view> arguments) {
  CHECK(is_open());
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string_view argument : arguments) {
    texts.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  // Fails only for want of memory; the reply that is then missing ends the exchange by its deadline.
  (void)::redisAppendCommandArgv(context_, static_cast<int>(texts.size()), texts.data(), sizes.data());
  ++n_appended_;
}

std::optional<TierFault> RedisLink::exchange(size_t max_bytes, const OnReply& on_reply) {
  CHECK(is_open());
  const int64_t deadline_us = now_us() + timeouts_.exchange_us;
  if (const auto fault = send_all(deadline_us)) return fault;
  for (size_t i = 0; i < n_appended_;) {
    void* raw = nullptr;
    if (::redisGetReplyFromReader(context_, &raw) != REDIS_OK) return fail_as_context_says();
    if (raw != nullptr) {
      const std::unique_ptr<void, decltype(&::freeReplyObject)> reply(raw, &::freeReplyObject);
      const RedisReply seen = view(*static_cast<const redisReply*>(raw));
      max_bytes -= std::min(max_bytes, seen.text.size());
      on_reply(i++, seen);
      continue;
    }
    if (context_->reader->len - context_->reader->pos > max_bytes + n_appended_ * 64 + kErrorBytes) {
      return fail_with(TierFault::kRefused, "a reply longer than what was asked for");
    }
    if (const auto fault = read_some(deadline_us)) return fault;
  }
  n_appended_ = 0;
  if (context_->reader->len != context_->reader->pos) {
    return fail_with(TierFault::kRefused, "more answers than questions");
  }
  return std::nullopt;
}

std::optional<TierFault> RedisLink::send_all(int64_t deadline_us) {
  for (;;) {
    int is_done = 0;
    if (::redisBufferWrite(context_, &is_done) != REDIS_OK) return fail_as_context_says();
    if (is_done != 0) return std::nullopt;
    if (const auto fault = wait_for(POLLOUT, deadline_us)) return fault;
  }
}

std::optional<TierFault> RedisLink::read_some(int64_t deadline_us) {
  const size_t n_before = context_->reader->len;
  if (::redisBufferRead(context_) != REDIS_OK) return fail_as_context_says();
  return context_->reader->len != n_before ? std::nullopt : wait_for(POLLIN, deadline_us);
}

std::optional<TierFault> RedisLink::wait_for(short events, int64_t deadline_us) {
  for (;;) {
    const int64_t left_us = deadline_us - now_us();
    if (is_closing_.load()) return fail_with(TierFault::kIo, "the store is closing");
    if (left_us <= 0) return fail_with(TierFault::kTimeout, "no answer in time");
    pollfd poll{.fd = context_->fd, .events = events, .revents = 0};
    const int n = ::poll(&poll, 1, static_cast<int>(std::min(left_us, kSliceUs) / 1000 + 1));
    if (n > 0) return std::nullopt;  // what is wrong with it shows when it is used
    if (n < 0 && errno != EINTR) return fail_with(TierFault::kIo, std::strerror(errno));
  }
}

}  // namespace pagoda::kv
