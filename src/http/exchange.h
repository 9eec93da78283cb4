// Exchange: what a connection and the Responders of one request share: the bytes on their way out and the callbacks back.
// Owned by both sides; the connection's end is told apart by whoever closes first.
// Threads: Responder's calls from any thread, the connection's only on its io thread.
// Invariants: (1) after kEnded or kGone nothing is queued any more.  (2) callbacks are dropped once the exchange is over, so the
// sessions they hold are too.  (3) what waits to be written is in the budget, or small; an answer without room becomes a 503, a stream pauses.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/byte_budget.h"
#include "http/counts.h"
#include "http/responder.h"

namespace pagoda::http {

// The connection as an exchange sees it.
class ExchangePeer {
 public:
  virtual ~ExchangePeer() = default;
  virtual void post(std::function<void()> work) = 0;                  // any thread
  virtual void flush(const std::shared_ptr<Exchange>& exchange) = 0;  // io thread
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // How the answer must be framed.
  struct Framing {
    enum class Body { kSent, kOmitted } body = Body::kSent;  // omitted: HEAD
    enum class After { kKeepAlive, kClose } after = After::kKeepAlive;
    int version = 11;
    std::string extra_headers;  // whole lines, of every answer
  };
  // `budget`: for what waits to be written; null: nobody counts.
  Exchange(std::weak_ptr<ExchangePeer> peer, Framing framing, ByteBudget* budget);

  // ---- Responder's side
  void send(HttpResponse response);
  void open_stream(StreamHead head);
  Room write(std::string_view bytes);
  void close();
  void abort();
  void abandon();
  void set_on_gone(std::function<void()> callback);
  void set_on_drained(std::function<void()> callback);
  void post(std::function<void()> work) const;

  // ---- the connection's side
  struct Output {
    std::string bytes;
    std::string body;  // behind them
    size_t size() const { return bytes.size() + body.size(); }
    enum class Then { kMore, kKeepAlive, kClose, kCut } then = Then::kMore;  // once bytes are written
  };
  Output take_output();
  // The bytes of the last take_output are out.
  void output_written();
  void gone();
  // Where the answer's status is counted, once; none: nowhere.
  void count_in(std::shared_ptr<StatusCounts> counts);
  // The connection must close after this answer.
  void set_close_after();
  bool is_answered() const;
  // Nothing to write yet, but a stream that wants company: how often, or zero.
  std::chrono::milliseconds keepalive_every() const;
  void write_keepalive();

 private:
  enum class Phase { kOpen, kStreaming, kEnded, kGone };
  using Lock = std::unique_lock<std::mutex>;

  void append_head(int status, std::string_view content_type, const std::vector<Header>& headers,
                   std::string_view framing);
  void append_chunk(std::string_view bytes);
  void schedule_flush(Lock lock);
  // Whether there is room for that many unwritten bytes.
  bool reserve(size_t n_bytes);
  bool is_chunked() const { return framing_.version >= 11; }

  static constexpr size_t kUncountedBytes = 4 * 1024;

  const std::weak_ptr<ExchangePeer> peer_;
  ByteBudget* const budget_;
  mutable std::mutex mutex_;
  // guarded by mutex_
  Framing framing_;
  Phase phase_ = Phase::kOpen;
  bool cut_ = false;
  bool flush_scheduled_ = false;
  bool told_full_ = false;
  std::string pending_;
  std::string pending_body_;
  ByteReservation memory_;                            // for what was not written yet, beyond kUncountedBytes
  std::shared_ptr<ByteReservation> response_memory_;  // that came with the answer
  size_t in_flight_bytes_ = 0;
  std::shared_ptr<StatusCounts> counts_;
  std::string keepalive_;
  std::chrono::milliseconds keepalive_every_{0};
  std::function<void()> on_gone_;
  std::function<void()> on_drained_;
};

// "Date: ..." and what follows it in every answer, ending in a line break.
std::string date_header();

}  // namespace pagoda::http
