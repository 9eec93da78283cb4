#include "serve/record_pump.h"

#include <gmock/gmock.h>

#include <future>

#include "base/eventually.h"

namespace pagoda::serve {
namespace {

class CountingSink final : public RecordSink {
 public:
  void on_request(const engine::RequestRecord& record) override { requests.push_back(record.id.value); }
  void on_step(const engine::StepRecord& record) override {
    steps.push_back(record.step);
    ++n_steps;
  }
  std::vector<uint64_t> requests, steps;  // the pump's thread
  std::atomic<int> n_steps{0};
};

// Runs on the pump's thread, and waits for it.
template <typename F>
auto on_pump(RecordPump& pump, F read) {
  std::promise<decltype(read())> answer;
  pump.post([&] { answer.set_value(read()); });
  return answer.get_future().get();
}

TEST(RecordPumpTest, HandsEachRecordToEverySinkInOrder) {
  engine::Records records;
  CountingSink first, second;
  RecordPump pump(records, {&first, &second});
  for (uint64_t i = 1; i <= 1000; ++i) {
    records.steps.push({.step = i});
    if (i % 10 == 0) records.requests.push({.id = engine::RequestId(i)});
  }
  const auto seen = on_pump(pump, [&] { return std::pair(first.steps, second.requests); });
  ASSERT_EQ(seen.first.size(), 1000u);
  EXPECT_TRUE(std::ranges::is_sorted(seen.first));
  ASSERT_EQ(seen.second.size(), 100u);
  EXPECT_EQ(seen.second.back(), 1000u);
}

TEST(RecordPumpTest, NeedsNobodyToAsk) {
  engine::Records records;
  CountingSink sink;
  const RecordPump pump(records, {&sink});
  for (uint64_t i = 1; i <= 3; ++i) records.steps.push({.step = i});
  EXPECT_TRUE(eventually([&] { return sink.n_steps == 3; }));
}

TEST(RecordPumpTest, WhatAFullRingDropsIsCountedThere) {
  engine::Records records;
  for (size_t i = 0; i < records.steps.capacity() + 7; ++i) records.steps.push({.step = i});
  CountingSink sink;
  RecordPump pump(records, {&sink});
  EXPECT_EQ(on_pump(pump, [&] { return sink.steps.size(); }), records.steps.capacity());
  EXPECT_EQ(records.steps.dropped(), 7u);
}

TEST(RecordPumpTest, EndsWithTasksInIt) {
  engine::Records records;
  CountingSink sink;
  std::promise<void> begun, may_end;
  auto ends = may_end.get_future().share();
  std::atomic<bool> ran_late{false};
  {
    RecordPump pump(records, {&sink});
    pump.post([&begun, ends] {
      begun.set_value();
      ends.wait();
    });
    begun.get_future().wait();
    std::thread stopper([&] { may_end.set_value(); });
    pump.post([&] { ran_late = true; });
    stopper.join();
  }  // either ran or was dropped; nothing hangs
  SUCCEED() << ran_late;
}

}  // namespace
}  // namespace pagoda::serve
