#include "http/request_parser.h"

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/check.h"
#include "base/error.h"
#include "http/url.h"

namespace pagoda::http {
namespace {

namespace beast_http = boost::beast::http;

// "0\r\n\r\n". Fewer bytes cannot end a chunked body, and Beast 1.81 asserts that it never gets fewer after "0\r\n".
constexpr size_t kLastChunkBytes = 5;

// The first byte of a TLS client, none of whose lines may ever end.
constexpr char kTlsHandshake = '\x16';
constexpr const char* kTlsMessage = "this port speaks HTTP without TLS: use http:// instead of https://";

int status_of(const boost::system::error_code& error) {
  if (error == beast_http::error::header_limit) return 431;
  if (error == beast_http::error::body_limit) return 413;
  if (error == beast_http::error::bad_version) return 505;
  return 400;
}

HttpRequest head_of(const beast_http::request<beast_http::string_body>& message) {
  HttpRequest request;
  request.method = message.method_string();
  request.target = message.target();
  const Target target = split_target(request.target);
  request.path = target.path;
  request.query = target.query;
  for (const auto& field : message) request.headers.push_back({field.name_string(), field.value()});
  request.version = static_cast<int>(message.version());
  request.keep_alive = message.keep_alive();
  return request;
}

}  // namespace

struct RequestParser::Impl {
  beast_http::request_parser<beast_http::string_body> parser;
};

RequestParser::RequestParser(Limits limits) : limits_(limits) { start(); }
RequestParser::~RequestParser() = default;

void RequestParser::start() {
  impl_ = std::make_unique<Impl>();
  impl_->parser.header_limit(static_cast<uint32_t>(limits_.head_bytes));
  impl_->parser.body_limit(std::max(limits_.body_bytes, limits_.large_bodies.bytes));
  state_ = State::kEmpty;
  expect_continue_ = false;
}

void RequestParser::fail(int status, std::string message) {
  state_ = State::kFailed;
  failure_status_ = status;
  failure_message_ = std::move(message);
}

// Requires a whole request line.
size_t RequestParser::body_limit() const {
  const auto& head = impl_->parser.get();
  const LargeBodies& large = limits_.large_bodies;
  if (large.bytes <= limits_.body_bytes || !large.are_taken) return limits_.body_bytes;
  const std::string_view path = split_target(std::string_view(head.target())).path;
  return large.are_taken(head.method_string(), path) ? large.bytes : limits_.body_bytes;
}

size_t RequestParser::feed(std::string_view bytes) {
  if (state_ == State::kDone || state_ == State::kFailed) return 0;
  size_t consumed = 0;
  if (state_ == State::kEmpty) {  // empty lines before a request are skipped (RFC 9112 sec. 2.2)
    while (consumed < bytes.size() && (bytes[consumed] == '\r' || bytes[consumed] == '\n')) ++consumed;
    if (consumed == bytes.size()) return consumed;
    if (bytes[consumed] == kTlsHandshake) return fail(400, kTlsMessage), consumed;
    state_ = State::kHead;
  }
  auto& parser = impl_->parser;
  boost::system::error_code error;
  try {
    while (consumed < bytes.size() && !parser.is_done()) {
      if (state_ == State::kBody && parser.chunked() && bytes.size() - consumed < kLastChunkBytes) break;
      const size_t n = parser.put(boost::asio::const_buffer(bytes.data() + consumed, bytes.size() - consumed), error);
      consumed += n;
      if (error || n == 0) break;
      if (state_ == State::kHead && parser.is_header_done()) break;
    }
  } catch (const std::exception& thrown) {
    fail(400, thrown.what());
    return consumed;
  }
  if (error && error != beast_http::error::need_more) {
    const int status = status_of(error);
    if (status == 413) {
      fail(status, fmt::format("the body is larger than {} bytes{}", body_limit(), limits_.body_hint));
    } else if (status == 431) {
      fail(status, fmt::format("the request's head is larger than {} bytes", limits_.head_bytes));
    } else {
      fail(status, fmt::format("malformed request: {}", error.message()));
    }
    return consumed;
  }
  if (parser.is_header_done() && state_ == State::kHead) {
    state_ = State::kBody;
    const auto& head = parser.get();
    const auto codings = head.equal_range(beast_http::field::transfer_encoding);
    for (auto coding = codings.first; coding != codings.second; ++coding) {
      if (equal_ignoring_case(coding->value(), "chunked")) continue;
      fail(501, "the only transfer coding that is understood is chunked");  // where the body ends is not known
      return consumed;
    }
    parser.eager(true);
    expect_continue_ = head.version() >= 11 && equal_ignoring_case(head[beast_http::field::expect], "100-continue");
  }
  if (state_ == State::kBody) {
    const size_t body_bytes = std::max<size_t>(parser.content_length().value_or(0), parser.get().body().size());
    if (body_bytes > limits_.body_bytes && body_bytes > body_limit()) {
      fail(413, fmt::format("the body is larger than {} bytes{}", body_limit(), limits_.body_hint));
      return consumed;
    }
  }
  if (parser.is_done()) state_ = State::kDone;
  if (state_ == State::kBody && consumed == 0 && bytes.size() > limits_.head_bytes) {
    fail(431, fmt::format("a chunk's head or the trailer is larger than {} bytes", limits_.head_bytes));
  }
  return consumed;
}

size_t RequestParser::body_bytes_with(size_t n_bytes) const {
  const auto length = impl_->parser.content_length();
  return length ? static_cast<size_t>(*length) : impl_->parser.get().body().size() + n_bytes;
}

bool RequestParser::has_length() const { return impl_->parser.content_length().has_value(); }

void RequestParser::discard() {
  impl_.reset();
  state_ = State::kFailed;
}

bool RequestParser::take_expect_continue() { return state_ == State::kBody && std::exchange(expect_continue_, false); }

HttpRequest RequestParser::head() const { return head_of(impl_->parser.get()); }

HttpRequest RequestParser::take() {
  CHECK(state_ == State::kDone);
  auto message = impl_->parser.release();
  HttpRequest request = head_of(message);
  request.body = std::move(message.body());
  start();
  return request;
}

}  // namespace pagoda::http
