// HttpServer: HTTP/1.1 over TCP or TLS: keep-alive, pipelining, chunked requests, streams, CORS; bytes only.
// A connection serves one request after the other and is read on while one runs, so a vanished client is noticed at once. A client that
// closes its sending side while its answer is being made counts as vanished.
// Refused, always with an answer: bodies and heads over the limits (413, 431), malformed requests (400), slow ones (408), unknown paths
// (404), wrong methods (405 with Allow), too many connections, or bytes of them (503). Upgrade headers (h2c) are ignored.
// Memory: a connection at rest takes some kilobytes; what comes and goes beyond that is counted in the budget, where there is one. A body that
// stalls while there is no room for others is refused.
// Owns: listener, connections, io threads. Handlers run on the io threads.     Threads: every call from any thread but an io thread.
// Source: RFC 9110, RFC 9112.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_budget.h"
#include "base/error.h"
#include "http/counts.h"
#include "http/message.h"
#include "http/router.h"
#include "http/tls_files.h"

namespace pagoda::http {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: the system picks one
  int io_threads = 1;
  size_t max_body_bytes = 16 * 1024 * 1024;
  LargeBodies large_bodies{};
  std::string body_limit_hint{};  // what a 413 says behind that limit: where it comes from, how to raise it
  // What requests and answers may take together; null: nobody counts. A body is reserved before it is read, so many times over as its handler
  // copies it. It must hold the largest one.
  ByteBudget* memory = nullptr;
  size_t body_copies = 1;
  size_t max_head_bytes = 32 * 1024;
  size_t max_connections = 16'384;                   // fewer if the process may not open that many files
  TlsFiles tls{};                                    // none: plain HTTP
  std::chrono::milliseconds tls_check_every{5'000};  // whether the files have changed
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds head_timeout{10'000};    // from a request's first byte to its blank line
  std::chrono::milliseconds body_timeout{60'000};    // from there to its last byte
  std::chrono::milliseconds drain_timeout{2'000};    // instead of both, if shorter, while the server drains
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds write_timeout{120'000};  // a reader that takes nothing for that long is dropped
  std::string cors_origin;                           // empty: no CORS headers; "*" or an origin
  // Asked before a request reaches its handler, and before a long body is read, of which it sees the head only; what it answers goes to the
  // client instead. Default: all may pass.
  std::function<std::optional<HttpResponse>(const HttpRequest& request)> gate;
  // Makes the body of an answer to a request that reaches no handler. Default: {"error":{"message":...}}.
  std::function<HttpResponse(int status, std::string_view message)> render_error;
};

class HttpServer {
 public:
  // Binds, listens and serves from then on. An address in use or not ours is an error that names the way out.
  static Result<std::unique_ptr<HttpServer>> create(HttpOptions options, Router router);
  // As stop().
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  // "http://127.0.0.1:8000", or https.
  virtual std::string url() const = 0;

  // Calls back with SIGINT or SIGTERM, each time one comes, on an io thread. Once per process.
  virtual void watch_signals(std::function<void(int signal)> callback) = 0;

  // Closes idle connections and every other one after its answer. New connections, and those that asked nothing yet, are still served, so
  // that handlers can say 503.
  virtual void drain() = 0;
  // Requests being received, handled or answered.
  virtual size_t active_requests() const = 0;
  virtual HttpStats stats() const = 0;
  // Closes everything now (running requests hear on_gone) and joins the io threads. Idempotent.
  virtual void stop() = 0;
};

}  // namespace pagoda::http
