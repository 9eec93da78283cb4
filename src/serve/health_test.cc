#include "serve/health.h"

#include <gmock/gmock.h>

#include "serve/call_places.h"

namespace pagoda::serve {
namespace {

using testing::HasSubstr;

TEST(Health, LiveWhileTheEngineTurns) {
  HealthFacts facts{.stall_limit = std::chrono::seconds(10), .most_calls = 4};
  EXPECT_EQ(why_not_live(facts), "");
  facts.engine.turn_us = 9'900'000;
  EXPECT_EQ(why_not_live(facts), "");
  facts.engine.turn_us = 10'100'000;
  EXPECT_THAT(why_not_live(facts), HasSubstr("one step for 10 s"));
  EXPECT_THAT(why_not_ready(facts), HasSubstr("one step for 10 s"));
}

TEST(Health, ReadyWhileWorkIsTaken) {
  HealthFacts facts{.stall_limit = std::chrono::seconds(10), .calls = 3, .most_calls = 4};
  facts.engine.waiting = 7;
  facts.engine.most_waiting = 8;
  EXPECT_EQ(why_not_ready(facts), "");
  facts.engine.waiting = 8;
  EXPECT_THAT(why_not_ready(facts), HasSubstr("--max-queued"));
  facts.calls = 4;
  EXPECT_THAT(why_not_ready(facts), HasSubstr("--max-streams"));
  facts.is_stopping = true;
  EXPECT_THAT(why_not_ready(facts), HasSubstr("stopping"));
  EXPECT_EQ(why_not_live(facts), "");
}

TEST(CallPlaces, AreLimitedAndGivenBack) {
  FakeClock clock;
  CallPlaces places(2, clock);
  auto first = places.take(), second = places.take();
  EXPECT_EQ(places.take(), nullptr);
  EXPECT_EQ(places.taken(), 2u);
  first->answered();
  first->leave();
  EXPECT_EQ(places.taken(), 1u);
  second.reset();
  EXPECT_EQ(places.taken(), 0u);
  EXPECT_NE(places.take(), nullptr);
}

TEST(CallPlaces, WhoIsRefusedDoesNotMakeTheRate) {
  FakeClock clock;
  CallPlaces places(100, clock);
  std::vector<std::shared_ptr<CallPlaces::Place>> held;
  for (int i = 0; i < 50; ++i) held.push_back(places.take());
  for (int i = 0; i < 20; ++i) {  // one is answered every two seconds
    clock.advance_us(2'000'000);
    held.back()->answered();
    held.back() = places.take();
    for (int refused = 0; refused < 100; ++refused) EXPECT_NE(places.take(), nullptr);
  }
  EXPECT_NEAR(places.retry_after_seconds(10), 80, 5);
  EXPECT_EQ(places.retry_after_seconds(1000), 1);
}

}  // namespace
}  // namespace pagoda::serve
