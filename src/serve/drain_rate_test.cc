#include "serve/drain_rate.h"

#include <gtest/gtest.h>

namespace pagoda::serve {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

class DrainRateTest : public testing::Test {
 protected:
  void answer(int n, int64_t every_us) {
    for (int i = 0; i < n; ++i) {
      clock_.advance_us(every_us);
      rate_.count_answered();
    }
  }
  FakeClock clock_;
  DrainRate rate_{clock_};
};

TEST_F(DrainRateTest, BeforeAnyAnswerItIsAsLongAsTheyHaveTaken) {
  EXPECT_EQ(rate_.seconds_until(1000), 1);
  rate_.begin_busy();
  clock_.advance_us(12'300'000);
  EXPECT_EQ(rate_.seconds_until(1), 13);
  clock_.advance_us(3600 * kSecondUs);
  EXPECT_EQ(rate_.seconds_until(1), 60);
}

TEST_F(DrainRateTest, MeasuresASteadyRateFromTheFirstSecondsOn) {
  rate_.begin_busy();
  answer(20, kSecondUs / 4);
  EXPECT_NEAR(rate_.answered_per_s(), 4, 0.5);
  answer(2000, kSecondUs / 4);
  EXPECT_NEAR(rate_.answered_per_s(), 4, 0.1);
  EXPECT_EQ(rate_.seconds_until(0), 1);
  EXPECT_EQ(rate_.seconds_until(1), 1);
  EXPECT_NEAR(rate_.seconds_until(400), 100, 3);
  EXPECT_EQ(rate_.seconds_until(1'000'000), 600);
}

TEST_F(DrainRateTest, FollowsAChange) {
  rate_.begin_busy();
  answer(1000, kSecondUs / 10);
  answer(120, kSecondUs);
  EXPECT_NEAR(rate_.answered_per_s(), 1, 0.2);
  clock_.advance_us(300 * kSecondUs);  // nothing ends any more
  EXPECT_EQ(rate_.seconds_until(10), 600);
}

TEST_F(DrainRateTest, IdleTimeDoesNotCount) {
  rate_.begin_busy();
  answer(400, kSecondUs / 4);
  rate_.end_busy();
  clock_.advance_us(3600 * kSecondUs);
  EXPECT_NEAR(rate_.answered_per_s(), 4, 0.1);
  rate_.begin_busy();
  rate_.begin_busy();
  clock_.advance_us(kSecondUs / 4);
  EXPECT_NEAR(rate_.seconds_until(40), 10, 1);
}

}  // namespace
}  // namespace pagoda::serve
