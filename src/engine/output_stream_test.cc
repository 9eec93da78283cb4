#include "engine/output_stream.h"

#include <gtest/gtest.h>

#include <thread>

namespace pagoda::engine {
namespace {

Delta delta(int choice, const std::string& text) {
  return {.choice = choice, .text = text, .tokens = {TokenId(choice)}, .logprobs = {}};
}

TEST(OutputStreamTest, WakesOnceUntilTaken) {
  int wakes = 0;
  OutputStream stream([&] { ++wakes; });
  EXPECT_TRUE(stream.take().empty());
  stream.push(Accepted{3});
  stream.push(delta(0, "a"));
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(stream.take().size(), 2u);
  EXPECT_TRUE(stream.take().empty());
  stream.push(delta(0, "b"));
  EXPECT_EQ(wakes, 2);
}

TEST(OutputStreamTest, UnreadDeltasOfOneChoiceBecomeOne) {
  OutputStream stream([] {});
  stream.push(Accepted{1});
  stream.push(delta(0, "a"));
  stream.push(delta(0, "b"));
  stream.push(delta(1, "x"));
  stream.push(delta(0, "c"));
  stream.push(Finished{.choice = 0, .reason = FinishReason::kLength, .stop_string = {}, .stop_token = {}, .usage = {}});
  stream.push(delta(1, "y"));
  const std::vector<Event> events = stream.take();
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(std::get<Delta>(events[1]).text, "ab");
  EXPECT_EQ(std::get<Delta>(events[1]).tokens.size(), 2u);
  EXPECT_EQ(std::get<Delta>(events[2]).text, "x");
  EXPECT_EQ(std::get<Delta>(events[3]).text, "c");
  EXPECT_TRUE(std::holds_alternative<Finished>(events[4]));
  EXPECT_EQ(std::get<Delta>(events[5]).text, "y");
}

TEST(OutputStreamTest, NothingIsLostBetweenThreads) {
  std::atomic<int> signals{0};
  OutputStream stream([&] {
    signals.fetch_add(1);
    signals.notify_one();
  });
  std::thread writer([&] {
    for (int i = 0; i < 5000; ++i) stream.push(delta(0, std::to_string(i) + " "));
    stream.push(Finished{});
  });
  std::string text, wanted;
  for (bool done = false; !done;) {
    const int before = signals.load();
    std::vector<Event> events = stream.take();
    if (events.empty()) signals.wait(before);
    for (const Event& event : events) {
      if (const auto* d = std::get_if<Delta>(&event)) text += d->text;
      done = done || std::holds_alternative<Finished>(event);
    }
  }
  writer.join();
  for (int i = 0; i < 5000; ++i) wanted += std::to_string(i) + " ";
  EXPECT_EQ(text, wanted);
}

TEST(OutputStreamTest, UnreadEventsAreCountedUntilTheyAreTaken) {
  const auto budget = std::make_shared<ByteBudget>(1 << 20);
  OutputStream stream([] {}, budget);
  stream.push(delta(0, std::string(1000, 'a')));
  EXPECT_EQ(budget->used_bytes(), 0u) << "a little is nobody's concern";
  stream.push(delta(0, std::string(100'000, 'a')));
  EXPECT_GE(budget->used_bytes(), 3u * 101'000);
  ByteReservation memory;
  EXPECT_EQ(stream.take(memory).size(), 1u);
  EXPECT_GE(memory.bytes(), 3u * 101'000);
  memory = {};
  EXPECT_EQ(budget->used_bytes(), 0u);
  stream.push(delta(0, std::string(100'000, 'a')));
  EXPECT_EQ(stream.take().size(), 1u);
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST(OutputStreamTest, MayBeReadWhenTheBudgetsOwnerIsGone) {
  auto budget = std::make_shared<ByteBudget>(1 << 20);
  OutputStream stream([] {}, budget);
  budget.reset();
  stream.push(delta(0, std::string(100'000, 'a')));
  EXPECT_EQ(stream.take().size(), 1u);
}

TEST(OutputStreamTest, WithoutRoomItEndsAndHoldsNothingMore) {
  const auto budget = std::make_shared<ByteBudget>(100'000);
  int wakes = 0;
  OutputStream stream([&] { ++wakes; }, budget);
  for (int i = 0; i < 100; ++i) {
    Delta next = delta(0, "word");
    next.logprobs.resize(1);
    next.logprobs[0].top.resize(20);
    stream.push(std::move(next));
  }
  EXPECT_TRUE(stream.is_overrun());
  EXPECT_EQ(wakes, 2) << "the first event, and the end";
  const std::vector<Event> events = stream.take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<Failed>(events[0]).error.code, ErrorCode::kResourceExhausted);
  stream.push(delta(0, "more"));
  EXPECT_TRUE(stream.take().empty());
  EXPECT_EQ(budget->used_bytes(), 0u);
}

}  // namespace
}  // namespace pagoda::engine
