#include "http/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <utility>

namespace pagoda::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kReadAheadBytes = 64 * 1024;  // of pipelined requests while one is served
constexpr milliseconds kLingerTimeout{5'000};

std::string peer_name(const asio::ip::tcp::socket& socket) {
  error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? "unknown" : endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, std::shared_ptr<ConnectionContext> context,
                       std::function<void(Connection*)> on_closed)
    : socket_(std::move(socket)),
      context_(std::move(context)),
      on_closed_(std::move(on_closed)),
      deadline_timer_(socket_.get_executor()),
      keepalive_timer_(socket_.get_executor()),
      parser_({context_->options.max_head_bytes, context_->options.max_body_bytes, context_->options.large_bodies}) {
  ++context_->live_connections;
}

Connection::~Connection() { --context_->live_connections; }

void Connection::start() {
  post([self = shared_from_this()] {
    error_code ignored;
    self->socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    self->socket_.non_blocking(true, ignored);
    self->peer_ = peer_name(self->socket_);
    self->arm(Deadline::kIdle);
    self->read();
  });
}

void Connection::post(std::function<void()> work) { asio::post(socket_.get_executor(), std::move(work)); }

void Connection::drain() {
  post([self = shared_from_this()] {
    if (self->exchange_) {
      self->exchange_->set_close_after();
    } else if (self->was_asked_ && self->parser_.state() == RequestParser::State::kEmpty && self->received_.empty()) {
      self->close();
    }
  });
}

void Connection::cut() {
  post([self = shared_from_this()] { self->close(); });
}

// ---- reading -----------------------------------------------------------------------------------------------------------

void Connection::read() {
  if (is_reading_ || is_closed_ || peer_ended_ || (exchange_ && received_.size() >= kReadAheadBytes)) return;
  is_reading_ = true;
  socket_.async_read_some(asio::buffer(read_buffer_), [self = shared_from_this()](error_code error, size_t n_bytes) {
    self->is_reading_ = false;
    if (self->is_closed_) return;
    if (error) return self->on_read_end(error != asio::error::eof);
    self->on_read(n_bytes);
    self->read();
  });
}

void Connection::on_read(size_t n_bytes) {
  if (is_lingering_) return;
  received_.append(read_buffer_.data(), n_bytes);
  if (!exchange_) process();
}

void Connection::on_read_end(bool was_reset) {
  peer_ended_ = true;
  if (was_reset) return close();
  if (!is_resuming_) close_unless_answering();
}

void Connection::close_unless_answering() {
  if (!exchange_ || !exchange_->is_answered()) close();
}

void Connection::process() {
  while (!exchange_ && !is_closed_ && !is_lingering_ && !received_.empty()) {
    const size_t consumed = parser_.feed(received_);
    received_.erase(0, consumed);
    switch (parser_.state()) {
      case RequestParser::State::kDone:
        dispatch(parser_.take());
        break;
      case RequestParser::State::kFailed:
        return refuse(parser_.failure_status(), parser_.failure_message());
      case RequestParser::State::kHead:
        set_active(true);
        if (deadline_ != Deadline::kHead) arm(Deadline::kHead);
        return;
      case RequestParser::State::kBody:
        set_active(true);
        if (parser_.take_expect_continue()) send_continue();
        if (deadline_ != Deadline::kBody) arm(Deadline::kBody);
        if (consumed == 0) return;
        break;
      case RequestParser::State::kEmpty:
        return;
    }
  }
}

void Connection::send_continue() {
  // Nothing else is being written between two answers, so the socket has room for these few bytes.
  error_code ignored;
  socket_.write_some(asio::buffer("HTTP/1.1 100 Continue\r\n\r\n", 25), ignored);
}

// ---- serving -----------------------------------------------------------------------------------------------------------

std::shared_ptr<Exchange> Connection::make_exchange(const HttpRequest& request) {
  using Framing = Exchange::Framing;
  was_asked_ = true;
  Framing framing;
  framing.body = request.method == "HEAD" ? Framing::Body::kOmitted : Framing::Body::kSent;
  framing.after = request.keep_alive && !context_->draining ? Framing::After::kKeepAlive : Framing::After::kClose;
  framing.version = request.version;
  framing.extra_headers = context_->common_headers;
  return std::make_shared<Exchange>(weak_from_this(), std::move(framing));
}

void Connection::dispatch(HttpRequest request) {
  set_active(true);
  arm(Deadline::kNone);
  request.peer = peer_;
  exchange_ = make_exchange(request);
  Responder responder(exchange_);
  Router::Match match = context_->router.find(request.method, request.path);
  if (match.handler == nullptr) return responder.send(answer_without_handler(request, match));
  request.path_values = std::move(match.values);
  (*match.handler)(std::move(request), std::move(responder));
}

HttpResponse Connection::answer_without_handler(const HttpRequest& request, const Router::Match& match) const {
  if (match.allow.empty()) return context_->options.render_error(404, "no such path: " + request.path);
  if (request.method != "OPTIONS") {
    HttpResponse response =
        context_->options.render_error(405, request.path + " takes " + match.allow + ", not " + request.method);
    response.headers.push_back({"Allow", match.allow});
    return response;
  }
  HttpResponse response{204, "", {{"Allow", match.allow}}, ""};
  if (context_->options.cors_origin.empty()) return response;
  const std::string_view wanted = request.header("Access-Control-Request-Headers");
  response.headers.push_back({"Access-Control-Allow-Methods", match.allow});
  response.headers.push_back({"Access-Control-Allow-Headers", wanted.empty() ? "*" : std::string(wanted)});
  response.headers.push_back({"Access-Control-Max-Age", "86400"});
  return response;
}

void Connection::refuse(int status, const std::string& message) {
  set_active(true);
  exchange_ = make_exchange(HttpRequest{});
  exchange_->set_close_after();
  Responder(exchange_).send(context_->options.render_error(status, message));
}

// ---- writing -----------------------------------------------------------------------------------------------------------

void Connection::flush(const std::shared_ptr<Exchange>& exchange) {
  if (exchange != exchange_ || is_closed_) return;
  if (is_writing_) {
    flush_again_ = true;
    return;
  }
  output_ = exchange_->take_output();
  written_bytes_ = 0;
  if (output_.then == Exchange::Output::Then::kCut) return close();
  if (output_.bytes.empty() && output_.then == Exchange::Output::Then::kMore) return;
  is_writing_ = true;
  write_some();
}

void Connection::write_some() {
  // Tries at once: most answers fit the socket's buffer and need no wait.
  while (written_bytes_ < output_.bytes.size()) {
    error_code error;
    const auto rest = asio::buffer(output_.bytes.data() + written_bytes_, output_.bytes.size() - written_bytes_);
    written_bytes_ += socket_.write_some(rest, error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      arm(Deadline::kWrite);
      return socket_.async_wait(asio::ip::tcp::socket::wait_write, [self = shared_from_this()](error_code wait_error) {
        if (self->is_closed_) return;
        if (wait_error) return self->close();
        self->write_some();
      });
    }
    if (error) return close();
  }
  on_written();
}

void Connection::on_written() {
  is_writing_ = false;
  last_write_ = std::chrono::steady_clock::now();
  if (deadline_ == Deadline::kWrite) arm(Deadline::kNone);
  const std::shared_ptr<Exchange> exchange = exchange_;
  exchange->output_written();
  if (output_.then != Exchange::Output::Then::kMore) return finish_exchange(output_.then);
  arm_keepalive();
  if (!std::exchange(flush_again_, false)) return;
  post([self = shared_from_this(), exchange] { self->flush(exchange); });
}

void Connection::finish_exchange(Exchange::Output::Then then) {
  exchange_.reset();
  output_ = {};
  set_active(false);
  flush_again_ = false;
  if (keepalive_armed_) keepalive_timer_.cancel();
  if (then == Exchange::Output::Then::kClose || context_->draining) return linger();
  arm(Deadline::kIdle);
  // Not from inside the handler's own call chain: a thousand pipelined requests must not nest.
  is_resuming_ = true;
  post([self = shared_from_this()] {
    self->is_resuming_ = false;
    if (self->is_closed_) return;
    if (!self->exchange_) self->process();
    if (self->peer_ended_) return self->close_unless_answering();
    self->read();
  });
}

void Connection::linger() {
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  is_lingering_ = true;
  received_.clear();
  if (peer_ended_) return close();
  arm(Deadline::kLinger);
  read();
}

void Connection::close() {
  if (std::exchange(is_closed_, true)) return;
  error_code ignored;
  deadline_timer_.cancel();
  keepalive_timer_.cancel();
  socket_.close(ignored);
  set_active(false);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->gone();
  on_closed_(this);
}

// ---- time --------------------------------------------------------------------------------------------------------------

void Connection::arm(Deadline deadline) {
  const HttpOptions& options = context_->options;
  deadline_ = deadline;
  switch (deadline) {
    case Deadline::kNone:
      return static_cast<void>(deadline_timer_.cancel());
    case Deadline::kIdle:
      deadline_timer_.expires_after(options.idle_timeout);
      break;
    case Deadline::kHead:
      deadline_timer_.expires_after(options.head_timeout);
      break;
    case Deadline::kBody:
      deadline_timer_.expires_after(options.body_timeout);
      break;
    case Deadline::kWrite:
      deadline_timer_.expires_after(options.write_timeout);
      break;
    case Deadline::kLinger:
      deadline_timer_.expires_after(kLingerTimeout);
      break;
  }
  deadline_timer_.async_wait([self = shared_from_this(), deadline](error_code error) {
    const bool is_stale =
        self->deadline_ != deadline || self->deadline_timer_.expiry() > std::chrono::steady_clock::now();
    if (!error && !is_stale && !self->is_closed_) self->on_deadline();
  });
}

void Connection::on_deadline() {
  if (deadline_ == Deadline::kHead) return refuse(408, "the request's head took too long");
  if (deadline_ == Deadline::kBody) return refuse(408, "the request's body took too long");
  if (deadline_ != Deadline::kNone) close();
}

void Connection::arm_keepalive() {
  const milliseconds every = exchange_->keepalive_every();
  if (every.count() == 0 || keepalive_armed_) return;
  keepalive_armed_ = true;
  keepalive_timer_.expires_at(last_write_ + every);
  keepalive_timer_.async_wait([self = shared_from_this(), every](error_code error) {
    self->keepalive_armed_ = false;
    if (self->is_closed_ || !self->exchange_) return;
    const auto now = std::chrono::steady_clock::now();
    if (!error && now >= self->last_write_ + every) {
      self->last_write_ = now;
      if (!self->is_writing_) self->exchange_->write_keepalive();
    }
    self->arm_keepalive();
  });
}

void Connection::set_active(bool active) {
  if (active == is_active_) return;
  is_active_ = active;
  if (active) {
    ++context_->active_requests;
  } else {
    --context_->active_requests;
  }
}

}  // namespace pagoda::http
