#include "cmd/terminal.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace pagoda::cmd {

bool shows_colours(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool is_dumb = term == nullptr || std::string_view(term) == "dumb";
  return (no_color == nullptr || *no_color == '\0') && !is_dumb && isatty(fd) == 1;
}

Status flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return fail(ErrorCode::kIo, "cannot write the output: {}", std::strerror(errno));
}

Result<Interrupts> Interrupts::watch() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  const int error = pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const int fd = error == 0 ? signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK) : -1;
  if (fd < 0) return fail(ErrorCode::kIo, "cannot watch for Ctrl-C: {}", std::strerror(error == 0 ? errno : error));
  return Interrupts(fd);
}

Interrupts::Interrupts(Interrupts&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Interrupts::~Interrupts() {
  if (fd_ >= 0) close(fd_);
}

bool Interrupts::wait_readable(int fd) {
  pollfd both[] = {{fd_, POLLIN, 0}, {fd, POLLIN, 0}};
  while (poll(both, 2, -1) < 0 && errno == EINTR) {
  }
  signalfd_siginfo info;
  return read(fd_, &info, sizeof info) != static_cast<ssize_t>(sizeof info);
}

std::optional<std::string> LineReader::next(Interrupts& interrupts) {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    if (ended_) return buffer_.empty() ? std::nullopt : std::optional(std::exchange(buffer_, {}));
    if (!interrupts.wait_readable(STDIN_FILENO)) return std::nullopt;
    char bytes[4096];
    const ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n > 0)
      buffer_.append(bytes, static_cast<size_t>(n));
    else
      ended_ = n == 0 || errno != EINTR;
  }
}

}  // namespace pagoda::cmd
