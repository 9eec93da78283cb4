// Mailbox: what other threads tell the engine thread, and the one thing it sleeps on (an eventfd: queue 1, cancels, completions).
// Threads: send from any; take and wait from the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace pagoda::engine {

// Wakes one sleeper; wakes while it is awake are not lost.
class WakeEvent {
 public:
  WakeEvent();
  ~WakeEvent();
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;

  void signal();
  // Until signalled, or until timeout_us have passed.
  void wait(std::optional<int64_t> timeout_us);

 private:
  int fd_;
};

template <typename Message>
class Mailbox {
 public:
  // `event`: others may signal it too, for as long as they hold it.
  explicit Mailbox(std::shared_ptr<WakeEvent> event) : event_(std::move(event)) {}

  void send(Message message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    event_->signal();
  }
  void wake() { event_->signal(); }

  // Moves all messages into `out`, in order.
  void take(std::vector<Message>& out) {
    out.clear();
    const std::lock_guard lock(mutex_);
    std::swap(out, messages_);
  }
  void wait(std::optional<int64_t> timeout_us) { event_->wait(timeout_us); }

 private:
  std::mutex mutex_;
  std::vector<Message> messages_;  // guarded by mutex_
  std::shared_ptr<WakeEvent> event_;
};

}  // namespace pagoda::engine
