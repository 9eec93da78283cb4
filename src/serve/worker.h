// Worker: one thread that runs tasks in order, for work too long for an io thread (parsing a megabyte of JSON).
// Bounds: the queue holds at most one task per connection, because a connection serves one request at a time.
// Threads: push from any. The destructor drops what has not begun and waits for what has.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace pagoda::serve {

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void push(std::function<void()> task);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool is_stopping_ = false;                 // guarded by mutex_
  std::thread thread_;
};

}  // namespace pagoda::serve
