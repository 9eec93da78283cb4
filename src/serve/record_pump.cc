#include "serve/record_pump.h"

#include <utility>

namespace pagoda::serve {

RecordPump::RecordPump(engine::Records& records, std::vector<RecordSink*> sinks)
    : records_(records), sinks_(std::move(sinks)), thread_([this] { work(); }) {}

RecordPump::~RecordPump() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void RecordPump::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void RecordPump::work() {
  while (true) {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kEvery, [&] { return is_stopping_ || !tasks_.empty(); });
      if (is_stopping_) return;
      tasks.swap(tasks_);
    }
    drain();
    for (const std::function<void()>& task : tasks) task();
  }
}

// No more than the rings hold, or a fast engine would keep the tasks waiting.
void RecordPump::drain() {
  for (size_t i = 0; i < records_.steps.capacity(); ++i) {
    const std::optional<engine::StepRecord> record = records_.steps.pop();
    if (!record) break;
    for (RecordSink* sink : sinks_) sink->on_step(*record);
  }
  for (size_t i = 0; i < records_.requests.capacity(); ++i) {
    const std::optional<engine::RequestRecord> record = records_.requests.pop();
    if (!record) break;
    for (RecordSink* sink : sinks_) sink->on_request(*record);
  }
  for (RecordSink* sink : sinks_) sink->on_tick();
}

}  // namespace pagoda::serve
