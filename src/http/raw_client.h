// RawClient: a blocking TCP client for tests: sends exactly the bytes it is told to, and reads with a deadline. Loopback only.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace pagoda::http {

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (receive_buffer_bytes > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool is_connected() const { return is_connected_; }
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Ends with a reset instead of a FIN.
  void reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void shutdown_send() { shutdown(fd_, SHUT_WR); }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // What arrives until `end` has been seen (in all that is still unread), the peer closes, or the time is up.
  std::string read_until(std::string_view end, int timeout_ms = 5000) {
    while (true) {
      if (const size_t at = unread_.find(end); at != std::string::npos) return cut(at + end.size());
      if (!receive(timeout_ms)) return cut(unread_.size());
    }
  }
  // One answer with Content-Length, head and body.
  std::string read_answer(int timeout_ms = 5000) {
    const std::string head = read_until("\r\n\r\n", timeout_ms);
    const size_t at = head.find("Content-Length: ");
    const size_t length = at == std::string::npos ? 0 : std::strtoul(head.c_str() + at + 16, nullptr, 10);
    while (unread_.size() < length && receive(timeout_ms)) {
    }
    return head + cut(std::min(length, unread_.size()));
  }
  std::string read_all(int timeout_ms = 5000) {
    while (receive(timeout_ms)) {
    }
    return cut(unread_.size());
  }
  // True if the peer closes within the time, whatever it still sends.
  bool sees_close(int timeout_ms = 5000) {
    while (receive(timeout_ms)) {
    }
    return has_ended_;
  }

 private:
  bool receive(int timeout_ms) {
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, timeout_ms) <= 0) return false;
    char buffer[16384];
    const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
    if (n <= 0) {
      has_ended_ = true;
      return false;
    }
    unread_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  std::string cut(size_t n) {
    std::string bytes = unread_.substr(0, n);
    unread_.erase(0, n);
    return bytes;
  }

  int fd_;
  bool is_connected_ = false;
  bool has_ended_ = false;
  std::string unread_;
};

}  // namespace pagoda::http
