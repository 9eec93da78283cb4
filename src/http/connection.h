// Connection: one TCP connection's life: read, parse, hand over, write, and again. Requests are served one after the other; what a
// pipelining client sends meanwhile waits in a bounded buffer.
// Memory: at rest kRestBytes. What a head beyond kKeptBytes, a body and an unread answer take is reserved in the server's budget; without room
// the request is refused.
// Owned by itself while operations are pending (shared_ptr in every handler) or a request is served, listed by the server.
// Threads: everything on its strand.     Errors: a peer's errors end the connection and nothing else.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/byte_budget.h"
#include "http/exchange.h"
#include "http/request_parser.h"
#include "http/server.h"
#include "http/transport.h"

namespace pagoda::http {

// What all connections of a server share; const but for the flags.
struct ConnectionContext {
  HttpOptions options;
  Router router;
  std::string common_headers;  // whole lines
  std::atomic<bool> draining{false};
  std::atomic<size_t> active_requests{0};
  std::atomic<size_t> live_connections{0};  // objects, closed ones too
  std::function<void()> on_shortage;        // some request found no room: io threads
  std::shared_ptr<HttpCounts> counts;
};

class Connection final : public ExchangePeer, public std::enable_shared_from_this<Connection> {
 public:
  // About, with its socket, parser and exchange; with TLS: and Transport::kTlsBytes.
  static constexpr size_t kRestBytes = 8 * 1024;
  static constexpr size_t kKeptBytes = 4 * 1024;  // of input that waits

  // `memory`: for rest, where the server counts.
  Connection(Transport transport, std::shared_ptr<ConnectionContext> context, ByteReservation memory,
             std::function<void(Connection*)> on_closed);
  ~Connection() override;
  void start();
  // Any thread: closes if nothing runs, else after the answer.
  void drain();
  // Any thread: closes now.
  void cut();
  // Any thread: ends a request whose body has stalled, or whose reader has, to make room for others.
  void drop_stalled();

  void post(std::function<void()> work) override;
  void flush(const std::shared_ptr<Exchange>& exchange) override;

 private:
  // What the deadline timer is waiting for.
  enum class Deadline { kNone, kHandshake, kIdle, kHead, kBody, kWrite, kLinger };

  void read();
  void on_readable();
  bool hold_transport();
  void on_read(std::string_view bytes);
  bool keep(std::string_view bytes);
  void on_read_end(bool was_reset);
  void close_unless_answering();
  void process();
  size_t consume(std::string_view bytes);
  bool may_pass();
  bool reserve_body(size_t n_bytes);
  void refuse_for_room(std::string_view what);
  void dispatch(HttpRequest request);
  HttpResponse answer_without_handler(const HttpRequest& request, const Router::Match& match) const;
  void refuse(int status, const std::string& message);
  void refuse(HttpResponse response);
  void send_continue();
  void write_some();
  void on_written();
  void finish_exchange(Exchange::Output::Then then);
  void linger();
  void close();
  void arm(Deadline deadline);
  void on_deadline();
  void arm_keepalive();
  void set_active(bool active);
  // The answer to a request begins: exchange_.
  void begin_exchange(const HttpRequest& request);
  void count_as(size_t route);

  Transport transport_;
  const std::shared_ptr<ConnectionContext> context_;
  const std::function<void(Connection*)> on_closed_;
  boost::asio::steady_timer deadline_timer_;
  boost::asio::steady_timer keepalive_timer_;
  Deadline deadline_ = Deadline::kNone;
  RequestParser parser_;
  std::string peer_;
  std::string received_;  // not yet parsed
  ByteReservation rest_memory_;
  ByteReservation transport_memory_;  // what TLS holds meanwhile
  ByteReservation received_memory_;   // beyond kKeptBytes
  ByteReservation body_memory_;       // of the body that is being received
  std::chrono::steady_clock::time_point last_read_;
  std::shared_ptr<Exchange> exchange_;  // the request being served, if one is
  std::shared_ptr<Connection> self_;    // while exchange_ is: reading may be paused, and then nothing is pending
  Exchange::Output output_;             // being written
  size_t written_bytes_ = 0;            // of output_.bytes
  std::chrono::steady_clock::time_point last_write_;
  std::chrono::steady_clock::time_point blocked_since_;  // the reader takes nothing
  bool is_reading_ = false;
  bool is_writing_ = false;
  bool flush_again_ = false;  // more came while writing
  bool is_resuming_ = false;  // about to look for the next request in received_
  bool keepalive_armed_ = false;
  bool was_asked_ = false;     // a request of it was served or refused
  bool loses_input_ = false;   // there was no room for what was sent ahead: no request of it can be told apart
  bool is_active_ = false;     // counted in active_requests
  bool peer_ended_ = false;    // sent its last byte
  bool is_lingering_ = false;  // answered and shut down; what still comes is thrown away
  bool is_closed_ = false;
};

}  // namespace pagoda::http
