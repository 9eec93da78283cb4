// Transport: a connection's bytes over its socket, plain or inside TLS. Nothing blocks, and at rest nothing is buffered: wait, then read or
// write what goes. The TLS handshake happens inside read_some.
// Units: bytes of the application.     Threads: the connection's strand.
// Errors: would_block: wait again; eof: the peer ended; else the connection is of no more use, but see met_plain_http.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "http/tls_keys.h"

namespace pagoda::http {

class Transport {
 public:
  using Error = boost::system::error_code;
  // Measured with OpenSSL 3.0: at rest; more while it shakes hands; more while a record is there in part.
  static constexpr size_t kTlsBytes = 16 * 1024, kHandshakeBytes = 32 * 1024, kRecordBytes = 18 * 1024;

  // `ssl`: null for plain bytes.
  Transport(boost::asio::ip::tcp::socket socket, SslPtr ssl);

  void open();
  std::string peer_name() const;  // address:port
  auto get_executor() { return socket_.get_executor(); }

  template <typename Handler>  // void(Error)
  void async_wait_read(Handler handler) {
    if (!has_decrypted()) return socket_.async_wait(read_waits_for_, std::move(handler));
    boost::asio::post(socket_.get_executor(), [handler = std::move(handler)]() mutable { handler(Error()); });
  }
  template <typename Handler>  // void(Error)
  void async_wait_write(Handler handler) {
    socket_.async_wait(write_waits_for_, std::move(handler));
  }
  size_t read_some(boost::asio::mutable_buffer buffer, Error& error);
  // Of the first and then the second. After would_block the same bytes must be offered again, or more.
  size_t write_some(const std::array<boost::asio::const_buffer, 2>& buffers, Error& error);

  bool is_handshaking() const { return is_handshaking_; }
  // What is held beyond rest, as of the last read.
  size_t transient_bytes() const;
  // The failed handshake was a request in plain HTTP: from now on bytes are plain, so that it can be told.
  bool met_plain_http() const { return met_plain_http_; }

  // Tells the peer that nothing more comes, if it can be told at once.
  void shutdown_send();
  void close();

 private:
  using Socket = boost::asio::ip::tcp::socket;

  bool has_decrypted() const;
  size_t read_tls(boost::asio::mutable_buffer buffer, Error& error);
  Error error_of(int result, Socket::wait_type& waits_for);

  Socket socket_;
  SslPtr ssl_;
  Socket::wait_type read_waits_for_ = Socket::wait_read;
  Socket::wait_type write_waits_for_ = Socket::wait_write;
  bool is_handshaking_;
  bool met_plain_http_ = false;
  bool is_broken_ = false;  // TLS has failed: it must not be asked for anything more
};

}  // namespace pagoda::http
