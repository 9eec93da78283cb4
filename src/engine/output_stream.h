// OutputStream: the events of one request on their way to whoever asked (queue 2).
// Problem: a slow reader must neither stall the engine nor grow memory. So push never waits, and a Delta that finds an unread Delta of
// its choice at the end of the queue is appended to it: what is held is bounded by the request's own output, and counted in a budget that all
// requests share. When that is used up the stream ends with Failed, and what was unread is gone.
// Threads: push from the engine and intake, take from one reader; `wake` runs on the pushing thread and must only signal.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/byte_budget.h"
#include "engine/request.h"

namespace pagoda::engine {

class OutputStream {
 public:
  // wake() is called after every push that found the queue empty, and when the budget is used up. No budget: nobody counts.
  explicit OutputStream(std::function<void()> wake, std::shared_ptr<ByteBudget> memory = nullptr);

  void push(Event event);
  // All events so far, in order; empty if none.
  std::vector<Event> take();
  // Likewise; `memory` is what they are counted in.
  std::vector<Event> take(ByteReservation& memory);
  // Ended by the budget, with a Failed to take.
  bool is_overrun() const;

 private:
  // False: no room.
  bool count(const Event& event);

  const std::shared_ptr<ByteBudget> budget_;  // its engine may be gone while the stream is still read
  mutable std::mutex mutex_;
  std::vector<Event> events_;  // guarded by mutex_
  uint64_t unread_bytes_ = 0;  // likewise
  ByteReservation memory_;     // likewise
  bool is_overrun_ = false;    // guarded by mutex_
  std::function<void()> wake_;
};

// A request's answer may have so many bytes that nobody counts.
inline constexpr uint64_t kUncountedAnswerBytes = 4096;

// What an event takes, about, and what its JSON does where it is rendered.
uint64_t event_bytes(const Event& event);

}  // namespace pagoda::engine
