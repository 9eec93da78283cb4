#include "http/connection.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <utility>

namespace pagoda::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr size_t kReadBytes = 16 * 1024;
constexpr milliseconds kLingerTimeout{5'000};
// While others find no room: a body without a byte, and an answer of which nothing is read, for that long make some.
constexpr milliseconds kStalledBody{2'000}, kStalledReader{10'000};

}  // namespace

Connection::Connection(Transport transport, std::shared_ptr<ConnectionContext> context, ByteReservation memory,
                       std::function<void(Connection*)> on_closed)
    : transport_(std::move(transport)),
      context_(std::move(context)),
      on_closed_(std::move(on_closed)),
      deadline_timer_(transport_.get_executor()),
      keepalive_timer_(transport_.get_executor()),
      parser_({context_->options.max_head_bytes, context_->options.max_body_bytes, context_->options.large_bodies,
               context_->options.body_limit_hint}),
      rest_memory_(std::move(memory)),
      transport_memory_(context_->options.memory),
      received_memory_(context_->options.memory),
      body_memory_(context_->options.memory) {
  ++context_->live_connections;
}

Connection::~Connection() { --context_->live_connections; }

void Connection::start() {
  post([self = shared_from_this()] {
    self->transport_.open();
    self->peer_ = self->transport_.peer_name();
    if (!self->hold_transport()) return self->close();
    self->arm(self->transport_.is_handshaking() ? Deadline::kHandshake : Deadline::kIdle);
    self->read();
  });
}

void Connection::post(std::function<void()> work) { asio::post(transport_.get_executor(), std::move(work)); }

void Connection::drain() {
  post([self = shared_from_this()] {
    if (self->exchange_) {
      self->exchange_->set_close_after();
    } else if (self->deadline_ == Deadline::kHead || self->deadline_ == Deadline::kBody) {
      self->arm(self->deadline_);  // half a request has come
    } else if (self->was_asked_ && self->parser_.state() == RequestParser::State::kEmpty && self->received_.empty()) {
      self->close();
    }
  });
}

void Connection::cut() {
  post([self = shared_from_this()] { self->close(); });
}

void Connection::drop_stalled() {
  post([self = shared_from_this()] {
    if (self->is_closed_) return;
    const auto now = std::chrono::steady_clock::now();
    if (self->deadline_ == Deadline::kBody && now - self->last_read_ > kStalledBody) {
      self->refuse(408, "the body stalled while other requests need its memory");
    } else if (self->deadline_ == Deadline::kWrite && now - self->blocked_since_ > kStalledReader) {
      self->close();
    }
  });
}

// ---- reading -----------------------------------------------------------------------------------------------------------

// Waits without a buffer: connections at rest have none.
void Connection::read() {
  if (is_reading_ || is_closed_ || peer_ended_ || (exchange_ && received_.size() >= kKeptBytes)) return;
  is_reading_ = true;
  transport_.async_wait_read([self = shared_from_this()](error_code error) {
    self->is_reading_ = false;
    if (self->is_closed_) return;
    if (error) return self->on_read_end(true);
    self->on_readable();
    self->read();
  });
}

void Connection::on_readable() {
  // A request that was kept back may be running by now.
  if (exchange_ && received_.size() >= kKeptBytes) return;
  thread_local std::array<char, kReadBytes> buffer;  // of the io thread: nothing stays in it
  const size_t room = exchange_ ? kKeptBytes - received_.size() : buffer.size();
  error_code error;
  const size_t n_bytes = transport_.read_some(asio::buffer(buffer.data(), room), error);
  if (!hold_transport()) return close();
  if (deadline_ == Deadline::kHandshake && !transport_.is_handshaking()) arm(Deadline::kIdle);
  if (error && transport_.met_plain_http() && !was_asked_)
    return refuse(400, "this port speaks HTTPS: use https:// instead of http://");
  if (error == asio::error::would_block || error == asio::error::try_again) return;
  if (error) return on_read_end(error != asio::error::eof);
  last_read_ = std::chrono::steady_clock::now();
  on_read({buffer.data(), n_bytes});
}

// Nobody can be told without room for TLS itself.
bool Connection::hold_transport() {
  const size_t n_bytes = transport_.transient_bytes();
  transport_memory_.shrink_to(n_bytes);
  if (context_->options.memory == nullptr || transport_memory_.grow_to(n_bytes)) return true;
  if (context_->on_shortage) context_->on_shortage();
  return false;
}

void Connection::on_read(std::string_view bytes) {
  if (is_lingering_) return;
  if (!exchange_ && received_.empty()) bytes.remove_prefix(consume(bytes));
  const bool is_over = is_closed_ || is_lingering_ || parser_.state() == RequestParser::State::kFailed;
  if (bytes.empty() || is_over || !keep(bytes)) return;
  if (!exchange_) process();
}

// What cannot be parsed yet. False: there is no room, and the request is refused.
bool Connection::keep(std::string_view bytes) {
  const size_t size = received_.size() + bytes.size();
  const bool is_counted = size > kKeptBytes && context_->options.memory != nullptr;
  if (is_counted && !received_memory_.grow_to(2 * size)) {
    if (!exchange_) {
      refuse_for_room("the request's head");
    } else {
      exchange_->set_close_after();
      loses_input_ = true;
    }
    return false;
  }
  received_.append(bytes);
  return true;
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
  received_.erase(0, consume(received_));
  if (!received_.empty() || received_memory_.bytes() == 0) return;
  received_ = {};
  received_memory_.shrink_to(0);
}

// Feeds the parser up to the end of a request, or of what it can use now; how much it took.
size_t Connection::consume(std::string_view bytes) {
  size_t taken = 0;
  while (!exchange_ && !is_closed_ && !is_lingering_ && taken < bytes.size()) {
    const std::string_view rest = bytes.substr(taken);
    if (parser_.state() == RequestParser::State::kBody && !reserve_body(rest.size())) break;
    const size_t consumed = parser_.feed(rest);
    taken += consumed;
    switch (parser_.state()) {
      case RequestParser::State::kDone:
        dispatch(parser_.take());
        break;
      case RequestParser::State::kFailed:
        refuse(parser_.failure_status(), parser_.failure_message());
        break;
      case RequestParser::State::kHead:
        set_active(true);
        if (deadline_ != Deadline::kHead) arm(Deadline::kHead);
        return taken;
      case RequestParser::State::kBody:
        set_active(true);
        if (deadline_ != Deadline::kBody && (!may_pass() || !reserve_body(0))) return taken;  // before it is asked for
        if (parser_.take_expect_continue()) send_continue();
        if (deadline_ != Deadline::kBody) arm(Deadline::kBody);
        if (consumed == 0) return taken;
        break;
      case RequestParser::State::kEmpty:
        return taken;
    }
  }
  return taken;
}

// A short body is taken first: its request ends as others do, and the connection goes on.
bool Connection::may_pass() {
  if (!context_->options.gate) return true;
  if (parser_.has_length() && parser_.body_bytes_with(0) <= kReadBytes) return true;
  std::optional<HttpResponse> answer = context_->options.gate(parser_.head());
  if (answer) refuse(std::move(*answer));
  return !answer;
}

// For the body as it will be with n_bytes more. Its buffer may be twice as long as what is in it, where its length is not known.
bool Connection::reserve_body(size_t n_bytes) {
  if (context_->options.memory == nullptr) return true;
  const size_t body_bytes = parser_.body_bytes_with(n_bytes);
  const size_t copies = context_->options.body_copies + (parser_.has_length() ? 0 : 1);
  if (body_bytes > parser_.body_limit() || body_memory_.grow_to(body_bytes * copies)) return true;
  refuse_for_room("this request's body");
  return false;
}

void Connection::refuse_for_room(std::string_view what) {
  refuse(503, fmt::format("there is no memory for {} now, beside the requests and answers that there are", what));
  if (context_->on_shortage) context_->on_shortage();
}

void Connection::send_continue() {
  // Nothing else is being written between two answers, so the socket has room for these few bytes.
  error_code ignored;
  transport_.write_some({asio::buffer("HTTP/1.1 100 Continue\r\n\r\n", 25)}, ignored);
}

// ---- serving -----------------------------------------------------------------------------------------------------------

void Connection::begin_exchange(const HttpRequest& request) {
  using Framing = Exchange::Framing;
  was_asked_ = true;
  Framing framing;
  framing.body = request.method == "HEAD" ? Framing::Body::kOmitted : Framing::Body::kSent;
  framing.after = request.keep_alive && !context_->draining ? Framing::After::kKeepAlive : Framing::After::kClose;
  framing.version = request.version;
  framing.extra_headers = context_->common_headers;
  exchange_ = std::make_shared<Exchange>(weak_from_this(), std::move(framing), context_->options.memory);
  self_ = shared_from_this();
  count_as(context_->counts->routes.size() - 1);
}

void Connection::count_as(size_t route) { exchange_->count_in({context_->counts, &context_->counts->routes[route]}); }

void Connection::dispatch(HttpRequest request) {
  set_active(true);
  arm(Deadline::kNone);
  request.peer = peer_;
  if (body_memory_.bytes() > 0) {
    request.memory = std::make_shared<ByteReservation>(std::move(body_memory_));
    body_memory_ = ByteReservation(context_->options.memory);
  }
  begin_exchange(request);
  Responder responder(exchange_);
  if (context_->options.gate) {
    if (auto answer = context_->options.gate(request)) return responder.send(std::move(*answer));
  }
  Router::Match match = context_->router.find(request.method, request.path);
  if (match.handler == nullptr) return responder.send(answer_without_handler(request, match));
  count_as(match.route);
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
  HttpResponse response = context_->options.render_error(status, message);
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  refuse(std::move(response));
}

void Connection::refuse(HttpResponse response) {
  set_active(true);
  parser_.discard();
  received_ = {};
  received_memory_.shrink_to(0);
  body_memory_.shrink_to(0);
  begin_exchange(HttpRequest{});
  exchange_->set_close_after();
  Responder(exchange_).send(std::move(response));
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
  if (output_.size() == 0 && output_.then == Exchange::Output::Then::kMore) return;
  is_writing_ = true;
  write_some();
}

void Connection::write_some() {
  // Tries at once: most answers fit the socket's buffer and need no wait.
  while (written_bytes_ < output_.size()) {
    error_code error;
    const size_t n_head = std::min(written_bytes_, output_.bytes.size());
    const std::array<asio::const_buffer, 2> rest{asio::buffer(output_.bytes) + n_head,
                                                 asio::buffer(output_.body) + (written_bytes_ - n_head)};
    written_bytes_ += transport_.write_some(rest, error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      arm(Deadline::kWrite);
      blocked_since_ = std::chrono::steady_clock::now();
      return transport_.async_wait_write([self = shared_from_this()](error_code wait_error) {
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
  const std::shared_ptr<Connection> self = std::move(self_);
  exchange_.reset();
  output_ = {};
  set_active(false);
  flush_again_ = false;
  if (keepalive_armed_) keepalive_timer_.cancel();
  if (then == Exchange::Output::Then::kClose || context_->draining || loses_input_) return linger();
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
  transport_.shutdown_send();
  is_lingering_ = true;
  received_.clear();
  if (peer_ended_) return close();
  arm(Deadline::kLinger);
  read();
}

void Connection::close() {
  if (std::exchange(is_closed_, true)) return;
  const std::shared_ptr<Connection> self = std::move(self_);  // to the end of this
  deadline_timer_.cancel();
  keepalive_timer_.cancel();
  if (!exchange_) transport_.shutdown_send();
  transport_.close();
  set_active(false);
  parser_.discard();
  received_ = {};
  output_ = {};
  for (ByteReservation* memory : {&rest_memory_, &transport_memory_, &received_memory_, &body_memory_})
    memory->shrink_to(0);
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
    case Deadline::kHandshake:
      deadline_timer_.expires_after(options.handshake_timeout);
      break;
    case Deadline::kIdle:
      deadline_timer_.expires_after(options.idle_timeout);
      break;
    case Deadline::kHead:
    case Deadline::kBody: {
      const auto timeout = deadline == Deadline::kHead ? options.head_timeout : options.body_timeout;
      deadline_timer_.expires_after(context_->draining ? std::min(timeout, options.drain_timeout) : timeout);
      break;
    }
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
