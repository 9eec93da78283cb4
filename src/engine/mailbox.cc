#include "engine/mailbox.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"

namespace pagoda::engine {

WakeEvent::WakeEvent() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CHECK(fd_ >= 0); }
WakeEvent::~WakeEvent() { ::close(fd_); }

void WakeEvent::signal() {
  const uint64_t one = 1;
  static_cast<void>(!::write(fd_, &one, sizeof one));  // fails only when the counter is full: awake anyway
}

void WakeEvent::wait(std::optional<int64_t> timeout_us) {
  pollfd poll{fd_, POLLIN, 0};
  const int timeout_ms = timeout_us ? static_cast<int>((*timeout_us + 999) / 1000) : -1;
  ::poll(&poll, 1, timeout_ms < 0 && timeout_us ? 0 : timeout_ms);
  uint64_t count = 0;
  static_cast<void>(!::read(fd_, &count, sizeof count));
}

}  // namespace pagoda::engine
