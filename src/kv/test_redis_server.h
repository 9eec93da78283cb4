// Debian's redis-server on a free loopback port, for as long as the object lives.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "kv/test_tier_world.h"
#include "kv/tier_redis_link.h"

namespace pagoda::kv {

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A listening socket on a free loopback port.
struct Listener {
  Listener() {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(fd, 16) == 0);
    socklen_t size = sizeof address;
    CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
  }
  ~Listener() { close(); }
  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  int fd = -1;
  uint16_t port = 0;
};

class RedisServer {
 public:
  RedisServer() {
    Listener free;
    port_ = free.port;
    free.close();
    start();
  }
  ~RedisServer() { stop(); }

  void start() {
    const std::string port = std::to_string(port_);
    pid_ = ::fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int null = ::open("/dev/null", O_RDWR);
      for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
      ::execlp("redis-server", "redis-server", "--port", port.c_str(), "--bind", "127.0.0.1", "--save", "",
               "--appendonly", "no", "--dir", dir_.path().c_str(), nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 500 && !answers(); ++i) {
      if (::waitpid(pid_, nullptr, WNOHANG) != 0) {
        std::fprintf(stderr, "redis-server does not start; scripts/setup test installs it\n");
        std::abort();
      }
      ::usleep(10'000);
    }
  }
  void stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  RedisAddress address() const { return {.host = "127.0.0.1", .port = port_}; }

  // Sends raw commands on a connection of their own; the text of the last reply.
  std::string command(std::initializer_list<std::string_view> arguments) {
    std::atomic<bool> never{false};
    RedisLink link(address(), {}, never);
    std::string text;
    if (link.open()) return "cannot connect";
    link.append(std::span(arguments.begin(), arguments.size()));
    (void)link.exchange(1 << 20, [&](size_t, const RedisReply& reply) {
      text = reply.kind == RedisReply::Kind::kInteger ? std::to_string(reply.integer) : std::string(reply.text);
    });
    return text;
  }

 private:
  bool answers() {
    std::atomic<bool> never{false};
    return !RedisLink(address(), {}, never).open();
  }
  TempDir dir_;
  uint16_t port_ = 0;
  pid_t pid_ = -1;
};

inline std::string redis_key(const TierObject& object) {
  return "pagoda:kv1:" + to_hex(object.key.bytes) + ":" + std::to_string(object.group.value);
}

}  // namespace pagoda::kv
