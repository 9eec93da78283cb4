#include "http/transport.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pagoda::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// ---- OpenSSL's own socket BIO writes with write(), and a peer that has gone would end the process by SIGPIPE ---------------

int socket_of(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int bio_write(BIO* bio, const char* bytes, int n_bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::send(socket_of(bio), bytes, static_cast<size_t>(n_bytes), MSG_NOSIGNAL);
  if (n < 0 && BIO_sock_should_retry(-1) != 0) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int bio_read(BIO* bio, char* bytes, int n_bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::recv(socket_of(bio), bytes, static_cast<size_t>(n_bytes), 0);
  if (n < 0 && BIO_sock_should_retry(-1) != 0) BIO_set_retry_read(bio);
  if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(n);
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const kMethod = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without signals");
    if (method == nullptr) return method;
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_ctrl(method, bio_control);
    return method;
  }();
  return kMethod;
}

bool attach(SSL* ssl, int socket) {
  BIO* const bio = socket_method() != nullptr ? BIO_new(socket_method()) : nullptr;
  if (bio == nullptr) return false;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);  // owns it
  return true;
}

int bounded(size_t n_bytes) { return static_cast<int>(std::min<size_t>(n_bytes, std::numeric_limits<int>::max())); }

}  // namespace

Transport::Transport(tcp::socket socket, SslPtr ssl)
    : socket_(std::move(socket)), ssl_(std::move(ssl)), is_handshaking_(ssl_ != nullptr) {
  if (ssl_ && !attach(ssl_.get(), socket_.native_handle())) is_broken_ = true;
}

void Transport::open() {
  Error ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
}

std::string Transport::peer_name() const {
  Error error;
  const auto endpoint = socket_.remote_endpoint(error);
  return error ? "unknown" : endpoint.address().to_string() + ":" + std::to_string(endpoint.port());
}

// A record is decrypted whole, and whoever reads less finds the rest here and not in the socket.
bool Transport::has_decrypted() const { return ssl_ && SSL_pending(ssl_.get()) > 0; }

size_t Transport::transient_bytes() const {
  if (is_handshaking_) return kHandshakeBytes;
  return ssl_ && SSL_has_pending(ssl_.get()) != 0 ? kRecordBytes : 0;
}

size_t Transport::read_some(asio::mutable_buffer buffer, Error& error) {
  return ssl_ ? read_tls(buffer, error) : socket_.read_some(buffer, error);
}

size_t Transport::read_tls(asio::mutable_buffer buffer, Error& error) {
  error = asio::error::connection_aborted;
  if (is_broken_) return 0;
  ERR_clear_error();
  const int n = SSL_read(ssl_.get(), buffer.data(), bounded(buffer.size()));
  if (is_handshaking_ && SSL_is_init_finished(ssl_.get()) != 0) is_handshaking_ = false;
  read_waits_for_ = Socket::wait_read;
  if (n > 0) {
    error = {};
    return static_cast<size_t>(n);
  }
  error = error_of(n, read_waits_for_);
  return 0;
}

size_t Transport::write_some(const std::array<asio::const_buffer, 2>& buffers, Error& error) {
  if (!ssl_) return socket_.write_some(buffers, error);
  error = asio::error::connection_aborted;
  if (is_broken_) return 0;
  const asio::const_buffer& next = buffers[0].size() > 0 ? buffers[0] : buffers[1];
  error = {};
  if (next.size() == 0) return 0;
  ERR_clear_error();
  const int n = SSL_write(ssl_.get(), next.data(), bounded(next.size()));
  write_waits_for_ = Socket::wait_write;
  if (n > 0) return static_cast<size_t>(n);
  error = error_of(n, write_waits_for_);
  return 0;
}

Transport::Error Transport::error_of(int result, Socket::wait_type& waits_for) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      waits_for = Socket::wait_read;
      return asio::error::would_block;
    case SSL_ERROR_WANT_WRITE:
      waits_for = Socket::wait_write;
      return asio::error::would_block;
    case SSL_ERROR_ZERO_RETURN:
      return asio::error::eof;
    default:
      break;
  }
  const int reason = ERR_GET_REASON(ERR_peek_error());
  ERR_clear_error();
  if (is_handshaking_ && (reason == SSL_R_HTTP_REQUEST || reason == SSL_R_HTTPS_PROXY_REQUEST)) {
    met_plain_http_ = true;
    is_handshaking_ = false;
    ssl_.reset();
  }
  is_broken_ = true;
  return asio::error::connection_aborted;
}

void Transport::shutdown_send() {
  Error ignored;
  if (ssl_ && !is_broken_ && !is_handshaking_) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());  // if there is no room for it, the end of the connection must do
    ERR_clear_error();
  }
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void Transport::close() {
  Error ignored;
  socket_.close(ignored);
  ssl_.reset();
}

}  // namespace pagoda::http
