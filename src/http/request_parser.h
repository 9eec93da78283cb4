// RequestParser: bytes from a socket into HttpRequests, one after the other. No sockets, so a fuzzer can drive it.
// Bounds: head and body limits hold while bytes arrive, before anything of that size is kept. feed() stops behind a head that a body follows,
// so that the caller can see to memory for it before it is kept.
// Threads: one.     Errors: a failed parser stays failed; the connection answers and closes.     Source: RFC 9112 (Boost.Beast parses).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "http/message.h"

namespace pagoda::http {

class RequestParser {
 public:
  struct Limits {
    size_t head_bytes = 32 * 1024;
    size_t body_bytes = 16 * 1024 * 1024;
    LargeBodies large_bodies{};
    std::string body_hint{};  // what a refusal says behind the limit
  };
  enum class State { kEmpty, kHead, kBody, kDone, kFailed };  // kEmpty: between requests

  explicit RequestParser(Limits limits);
  ~RequestParser();

  // Takes bytes up to the end of one request and says how many; what is left must be given again with what follows.
  size_t feed(std::string_view bytes);
  State state() const { return state_; }
  // Requires kBody. What the body takes once the next n_bytes of input have come: all of it where its length is known.
  size_t body_bytes_with(size_t n_bytes) const;
  // Requires kBody: whether the head says how long the body is.
  bool has_length() const;
  // Requires kBody: of this request's body.
  size_t body_limit() const;
  // Requires kBody: the request without its body.
  HttpRequest head() const;
  // Forgets what there is of a body, for good: the parser is failed.
  void discard();
  // True once per request that waits for a 100 before it sends its body.
  bool take_expect_continue();
  // Requires kDone; then kEmpty.
  HttpRequest take();
  // Requires kFailed: what to answer.
  int failure_status() const { return failure_status_; }
  const std::string& failure_message() const { return failure_message_; }

 private:
  struct Impl;
  void start();
  void fail(int status, std::string message);

  Limits limits_;
  std::unique_ptr<Impl> impl_;
  State state_ = State::kEmpty;
  bool expect_continue_ = false;
  int failure_status_ = 0;
  std::string failure_message_;
};

}  // namespace pagoda::http
