// Responder: one request's way back to its client. A cheap copyable handle on the exchange between a request and its answer.
// Use: either one send(), or open_stream(), write()* and close(). If every copy is dropped before that, the client gets a 500 (or, in a
// stream, a cut connection), so nobody waits for ever.
// Threads: every call from any thread; callbacks and posted work run on the connection's io thread, one at a time, and must not block.
// Bounds: a reader that does not read makes write() answer kFull above kHighWaterBytes; on_drained tells when half of that is gone. What
// is written in between is still taken: the caller stops, the server does not drop.
// Errors: a vanished client is on_gone, once; later calls are ignored.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"

namespace pagoda::http {

class Exchange;

struct StreamHead {
  int status = 200;
  std::string content_type = "text/event-stream";
  std::vector<Header> headers;
  std::string keepalive;  // written whenever nothing else was for keepalive_every; empty: never
  std::chrono::milliseconds keepalive_every{15000};
};

enum class Room { kReady, kFull, kGone };

inline constexpr size_t kHighWaterBytes = 256 * 1024;

class Responder {
 public:
  explicit Responder(std::shared_ptr<Exchange> exchange);

  void send(HttpResponse response);

  // The head leaves together with the first write.
  void open_stream(StreamHead head);
  Room write(std::string_view bytes);
  void close();
  // Cuts the connection, so that the client sees an unfinished answer.
  void abort();

  // Called once if the client goes away before the answer has been handed over whole; also while nothing is being written.
  void on_gone(std::function<void()> callback);
  // Called each time the queue has drained after a write() that answered kFull.
  void on_drained(std::function<void()> callback);
  // Runs work on the io thread that serves this connection.
  void post(std::function<void()> work) const;

 private:
  struct Handle;
  std::shared_ptr<Handle> handle_;
};

}  // namespace pagoda::http
