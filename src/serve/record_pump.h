// RecordPump: the one reader of the engine's record rings (engine/records.h): a thread that hands each record to every sink.
// What is asked of a sink's figures runs on the same thread, behind the records that there were: sinks need no locks, and whoever asks
// waits neither for a step nor for another reader.
// Threads: post from any. Sinks and tasks run on the pump's thread; what a task waits for, everybody's records wait for.
// Bounds: it looks every kEvery; rings that fill up before that drop and count.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/records.h"

namespace pagoda::serve {

// Who learns of each record, once, in the order they were made.
class RecordSink {
 public:
  virtual ~RecordSink() = default;
  virtual void on_request(const engine::RequestRecord& record) = 0;
  virtual void on_step(const engine::StepRecord& record) = 0;
  // After each look at the rings, whether there was something or not.
  virtual void on_tick() {}
};

class RecordPump {
 public:
  static constexpr std::chrono::milliseconds kEvery{100};

  // Records and sinks outlive the pump.
  RecordPump(engine::Records& records, std::vector<RecordSink*> sinks);
  // Drops tasks that have not begun.
  ~RecordPump();
  RecordPump(const RecordPump&) = delete;
  RecordPump& operator=(const RecordPump&) = delete;

  // Runs the task when every record from before this call has been handed on.
  void post(std::function<void()> task);

 private:
  void work();
  void drain();

  engine::Records& records_;
  const std::vector<RecordSink*> sinks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool is_stopping_ = false;                 // guarded by mutex_
  std::thread thread_;
};

}  // namespace pagoda::serve
