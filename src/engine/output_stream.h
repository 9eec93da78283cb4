// OutputStream: the events of one request on their way to whoever asked (queue 2).
// Problem: a slow reader must neither stall the engine nor grow memory. So push never waits, and a Delta that finds an unread Delta of
// its choice at the end of the queue is appended to it: what is held is bounded by the request's own output.
// Threads: push from the engine and intake, take from one reader; `wake` runs on the pushing thread and must only signal.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace pagoda::engine {

class OutputStream {
 public:
  // wake() is called after every push that found the queue empty.
  explicit OutputStream(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(Event event);
  // All events so far, in order; empty if none.
  std::vector<Event> take();

 private:
  std::mutex mutex_;
  std::vector<Event> events_;  // guarded by mutex_
  std::function<void()> wake_;
};

}  // namespace pagoda::engine
