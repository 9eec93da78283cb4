#include "http/exchange.h"

#include <ctime>
#include <utility>

#include "base/error.h"

namespace pagoda::http {

std::string date_header() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  const size_t n = std::strftime(text, sizeof text, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &utc);
  return std::string(text, n);
}

Exchange::Exchange(std::weak_ptr<ExchangePeer> peer, Framing framing, ByteBudget* budget)
    : peer_(std::move(peer)), budget_(budget), framing_(std::move(framing)), memory_(budget) {}

bool Exchange::reserve(size_t n_bytes) {
  return budget_ == nullptr || n_bytes <= kUncountedBytes || memory_.grow_to(n_bytes);
}

void Exchange::append_head(int status, std::string_view content_type, const std::vector<Header>& headers,
                           std::string_view framing) {
  if (counts_) counts_->add(status);
  pending_ += fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  pending_ += date_header();
  if (!content_type.empty()) pending_ += fmt::format("Content-Type: {}\r\n", content_type);
  for (const Header& header : headers) pending_ += fmt::format("{}: {}\r\n", header.name, header.value);
  pending_ += framing_.extra_headers;
  if (framing_.after == Framing::After::kClose) {
    pending_ += "Connection: close\r\n";
  } else if (framing_.version < 11) {
    pending_ += "Connection: keep-alive\r\n";
  }
  pending_ += framing;
  pending_ += "\r\n";
}

void Exchange::append_chunk(std::string_view bytes) {
  if (bytes.empty() || framing_.body == Framing::Body::kOmitted) return;
  if (is_chunked()) pending_ += fmt::format("{:x}\r\n", bytes.size());
  pending_ += bytes;
  if (is_chunked()) pending_ += "\r\n";
}

void Exchange::send(HttpResponse response) {
  Lock lock(mutex_);
  if (phase_ != Phase::kOpen) return;
  if (response.memory == nullptr && !reserve(response.body.size())) {
    response = {503,
                "application/json",
                {{"Retry-After", "1"}},
                R"({"error":{"message":"there is no memory for the answer now","type":"unavailable_error"}})"};
  }
  const bool bodiless = response.status == 204 || response.status == 304;
  append_head(response.status, bodiless ? "" : response.content_type, response.headers,
              bodiless ? "" : fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (!bodiless && framing_.body == Framing::Body::kSent) pending_body_ = std::move(response.body);
  response_memory_ = std::move(response.memory);
  phase_ = Phase::kEnded;
  schedule_flush(std::move(lock));
}

void Exchange::open_stream(StreamHead head) {
  Lock lock(mutex_);
  if (phase_ != Phase::kOpen) return;
  if (!is_chunked())
    framing_.after = Framing::After::kClose;  // HTTP/1.0: the end of the connection is the end of the body
  append_head(head.status, head.content_type, head.headers, is_chunked() ? "Transfer-Encoding: chunked\r\n" : "");
  keepalive_ = std::move(head.keepalive);
  keepalive_every_ = keepalive_.empty() ? std::chrono::milliseconds{0} : head.keepalive_every;
  phase_ = Phase::kStreaming;
}

Room Exchange::write(std::string_view bytes) {
  Lock lock(mutex_);
  if (phase_ != Phase::kStreaming) return Room::kGone;
  append_chunk(bytes);
  const size_t unwritten = pending_.size() + in_flight_bytes_;
  const bool full = unwritten > kHighWaterBytes || !reserve(2 * unwritten);  // a string's buffer may be twice as long
  if (full) told_full_ = true;
  schedule_flush(std::move(lock));
  return full ? Room::kFull : Room::kReady;
}

void Exchange::close() {
  Lock lock(mutex_);
  if (phase_ != Phase::kStreaming) return;
  if (is_chunked() && framing_.body == Framing::Body::kSent) pending_ += "0\r\n\r\n";
  phase_ = Phase::kEnded;
  schedule_flush(std::move(lock));
}

void Exchange::abort() {
  Lock lock(mutex_);
  if (phase_ != Phase::kOpen && phase_ != Phase::kStreaming) return;
  phase_ = Phase::kEnded;
  cut_ = true;
  schedule_flush(std::move(lock));
}

void Exchange::abandon() {
  Phase phase;
  {
    const Lock lock(mutex_);
    phase = phase_;
  }
  if (phase == Phase::kOpen) {
    send({500, "application/json", {}, R"({"error":{"message":"the request was dropped","type":"server_error"}})"});
  } else if (phase == Phase::kStreaming) {
    abort();
  }
}

void Exchange::set_on_gone(std::function<void()> callback) {
  {
    const Lock lock(mutex_);
    if (phase_ == Phase::kEnded) return;
    if (phase_ != Phase::kGone) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Exchange::set_on_drained(std::function<void()> callback) {
  const Lock lock(mutex_);
  if (phase_ == Phase::kOpen || phase_ == Phase::kStreaming) on_drained_ = std::move(callback);
}

void Exchange::post(std::function<void()> work) const {
  {
    const Lock lock(mutex_);
    if (phase_ == Phase::kGone) return;
  }
  if (const auto peer = peer_.lock()) peer->post(std::move(work));
}

void Exchange::schedule_flush(Lock lock) {
  if (std::exchange(flush_scheduled_, true)) return;
  lock.unlock();
  const auto peer = peer_.lock();
  if (!peer) return;
  peer->post([self = shared_from_this()] {
    {
      const Lock inner(self->mutex_);
      self->flush_scheduled_ = false;
    }
    if (const auto connection = self->peer_.lock()) connection->flush(self);
  });
}

Exchange::Output Exchange::take_output() {
  std::function<void()> dropped_gone, dropped_drained;  // destroyed unlocked: they may hold the last Responder
  const Lock lock(mutex_);
  Output output;
  output.bytes = std::exchange(pending_, {});
  output.body = std::exchange(pending_body_, {});
  in_flight_bytes_ = output.size();
  if (phase_ != Phase::kEnded) return output;
  dropped_gone = std::exchange(on_gone_, nullptr);
  dropped_drained = std::exchange(on_drained_, nullptr);
  output.then = cut_                                           ? Output::Then::kCut
                : framing_.after == Framing::After::kKeepAlive ? Output::Then::kKeepAlive
                                                               : Output::Then::kClose;
  return output;
}

void Exchange::output_written() {
  std::function<void()> drained;
  {
    const Lock lock(mutex_);
    in_flight_bytes_ = 0;
    memory_.shrink_to(2 * pending_.size());
    if (phase_ == Phase::kEnded && pending_.empty()) response_memory_.reset();
    if (phase_ == Phase::kStreaming && told_full_ && pending_.size() <= kHighWaterBytes / 2) {
      told_full_ = false;
      drained = on_drained_;
    }
  }
  if (drained) drained();
}

void Exchange::gone() {
  std::function<void()> callback, dropped;
  bool is_unanswered;
  {
    const Lock lock(mutex_);
    is_unanswered = phase_ == Phase::kOpen || phase_ == Phase::kStreaming;
    if (phase_ == Phase::kOpen && counts_) counts_->add_gone();
    callback = std::exchange(on_gone_, nullptr);
    dropped = std::exchange(on_drained_, nullptr);
    phase_ = Phase::kGone;
    pending_ = {};
    pending_body_ = {};
    memory_.shrink_to(0);
    response_memory_.reset();
  }
  if (callback && is_unanswered) callback();
}

void Exchange::count_in(std::shared_ptr<StatusCounts> counts) {
  const Lock lock(mutex_);
  counts_ = std::move(counts);
}

void Exchange::set_close_after() {
  const Lock lock(mutex_);
  framing_.after = Framing::After::kClose;
}

bool Exchange::is_answered() const {
  const Lock lock(mutex_);
  return phase_ == Phase::kEnded && !cut_;
}

std::chrono::milliseconds Exchange::keepalive_every() const {
  const Lock lock(mutex_);
  return phase_ == Phase::kStreaming ? keepalive_every_ : std::chrono::milliseconds{0};
}

void Exchange::write_keepalive() {
  Lock lock(mutex_);
  if (phase_ != Phase::kStreaming) return;
  append_chunk(keepalive_);
  schedule_flush(std::move(lock));
}

}  // namespace pagoda::http
