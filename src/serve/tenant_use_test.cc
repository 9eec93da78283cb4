#include "serve/tenant_use.h"

#include <gmock/gmock.h>

#include <random>

#include "base/test_seed.h"

namespace pagoda::serve {
namespace {

using testing::HasSubstr;

constexpr int64_t kSecondUs = 1'000'000;

TEST(TokenBucketTest, FillsByTheMinute) {
  TokenBucket bucket(0);
  bucket.set_rate(60, 0);
  EXPECT_EQ(bucket.wait_us(60, 0), 0);  // full at first
  bucket.take(60);
  EXPECT_EQ(bucket.wait_us(1, 0), kSecondUs);
  EXPECT_EQ(bucket.wait_us(30, 10 * kSecondUs), 20 * kSecondUs);
  EXPECT_EQ(bucket.wait_us(30, 30 * kSecondUs), 0);
  EXPECT_EQ(bucket.wait_us(60, 1000 * kSecondUs), 0);
  EXPECT_DOUBLE_EQ(bucket.level(), 60);  // no more than a minute's
}

TEST(TokenBucketTest, OwesWhatWasUsedBeyondTheEstimate) {
  TokenBucket bucket(0);
  bucket.set_rate(60, 0);
  bucket.take(10);
  bucket.give(10 - 100);  // it was ten times as much
  EXPECT_EQ(bucket.wait_us(1, 0), 41 * kSecondUs);
  bucket.give(30);
  EXPECT_EQ(bucket.wait_us(1, 0), 11 * kSecondUs);
  EXPECT_EQ(bucket.wait_us(1000, 0), 70 * kSecondUs);  // more than it holds: until it is full
}

TEST(TokenBucketTest, AnotherRateCountsFromThen) {
  TokenBucket bucket(0);
  bucket.set_rate(60, 0);
  bucket.set_rate(600, 0);
  EXPECT_DOUBLE_EQ(bucket.level(), 60);
  EXPECT_EQ(bucket.wait_us(600, 0), 54 * kSecondUs);
  bucket.set_rate(6, 0);
  EXPECT_DOUBLE_EQ(bucket.level(), 6);
}

class TenantUseTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Admission>> admit(const TenantLimits& limits, int prompt_tokens = 10,
                                           std::optional<int> max_tokens = 10, int n_choices = 1,
                                           size_t n_prompts = 1) {
    auto tenant = std::make_shared<Tenant>(Tenant{.name = "t"});
    tenant->limits = limits;
    engine::Request request;
    request.prompt = engine::TokenPrompt{std::vector<TokenId>(static_cast<size_t>(prompt_tokens))};
    request.max_tokens = max_tokens;
    request.n_choices = n_choices;
    return use_->admit(tenant, model_, std::vector(n_prompts, request));
  }
  static void expect_limited(const Result<std::unique_ptr<Admission>>& refused, int retry_after_s,
                             const std::string& words) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kRateLimited);
    EXPECT_EQ(refused.error().retry_after_s, retry_after_s) << refused.error().message;
    EXPECT_THAT(refused.error().message, HasSubstr(words));
  }

  FakeClock clock_;
  std::shared_ptr<TenantUse> use_ = std::make_shared<TenantUse>(clock_);
  engine::ModelInfo model_ = [] {
    engine::ModelInfo model;
    model.context_tokens = 100;
    model.kv_token_bytes = 1000;
    return model;
  }();
};

TEST_F(TenantUseTest, ConcurrentAnswers) {
  const TenantLimits limits{.most_concurrent = 3};
  auto first = admit(limits, 10, 10, 2);
  ASSERT_TRUE(first);
  auto second = admit(limits);
  ASSERT_TRUE(second);
  expect_limited(admit(limits), 1, "3 answers at once, and has 3");
  clock_.advance_us(90 * kSecondUs);
  (*first)->settle({});
  EXPECT_EQ(use_->held().concurrent, 1);
  EXPECT_TRUE(admit(limits, 10, 10, 1, 2));                                      // which ends at once
  expect_limited(admit(limits, 10, 10, 3), 27, "3 answers at once, and has 1");  // one took 90 s, one nothing
  const auto never = admit(limits, 10, 10, 2, 2);
  EXPECT_EQ(never.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(never.error().message, AllOf(HasSubstr("4 answers"), HasSubstr("may have 3")));
}

TEST_F(TenantUseTest, QueuedAnswersAreThoseWithoutAToken) {
  const TenantLimits limits{.most_queued = 2};
  auto first = admit(limits), second = admit(limits);
  expect_limited(admit(limits), 1, "2 answers of this key may wait");
  (*first)->answered(0);
  (*first)->answered(0);
  EXPECT_EQ(use_->held().queued, 1);
  EXPECT_EQ(use_->held().concurrent, 2);
  EXPECT_TRUE(admit(limits));
  first->reset();
  second->reset();
  EXPECT_EQ(use_->held().queued, 0);
  EXPECT_EQ(use_->held().concurrent, 0);
}

TEST_F(TenantUseTest, KvBytesThatAnswersMayComeToHold) {
  const TenantLimits limits{.kv_bytes = 50'000};
  auto first = admit(limits, 10, 10, 2);  // the prompt once
  ASSERT_TRUE(first);
  EXPECT_EQ(use_->held().kv_bytes, 30'000u);
  EXPECT_TRUE(admit(limits));
  expect_limited(admit(limits, 11, 10), 1, "21000 bytes of K and V, but of 50000");
  EXPECT_EQ(admit(limits, 10, {}).error().code, ErrorCode::kInvalidArgument);  // the rest of the context
  EXPECT_EQ(use_->held().kv_bytes, 30'000u);
}

TEST_F(TenantUseTest, AcceptedPromptsCountAsTheyAre) {
  const TenantLimits limits{.kv_bytes = 50'000};
  auto first = admit(limits), second = admit(limits);
  EXPECT_TRUE((*first)->accepted(0, 15));
  EXPECT_EQ(use_->held().kv_bytes, 45'000u);
  const Status refused = (*second)->accepted(0, 16);
  EXPECT_EQ(refused.error().code, ErrorCode::kRateLimited);
  EXPECT_EQ((*second)->accepted(0, 60).error().code, ErrorCode::kInvalidArgument);  // never
  EXPECT_TRUE((*second)->accepted(0, 15));
  EXPECT_TRUE((*first)->accepted(0, 5));
  EXPECT_EQ(use_->held().kv_bytes, 40'000u);
  first->reset();
  second->reset();
  EXPECT_EQ(use_->held().kv_bytes, 0u);
}

TEST_F(TenantUseTest, TokensPerMinuteAreChargedAsUsed) {
  const TenantLimits limits{.tokens_per_minute = 60};
  auto first = admit(limits, 20, 10);
  ASSERT_TRUE(first);
  expect_limited(admit(limits, 30, 10), 10, "60 tokens per minute");
  engine::Usage used;
  used.prompt_tokens = 20;
  used.cached_tokens = 16;
  used.completion_tokens = 6;
  (*first)->settle(used);  // 10 of the 30
  (*first)->settle(used);
  EXPECT_TRUE(admit(limits, 40, 10));  // which ends without having used any
  expect_limited(admit(limits, 50, 10), 10, "60 tokens per minute");
  clock_.advance_us(10 * kSecondUs);
  auto large = admit(limits, 100, 50);  // more than it ever holds: once it is full
  ASSERT_TRUE(large);
  expect_limited(admit(limits, 1, 0), 91, "60 tokens per minute");
}

TEST_F(TenantUseTest, ALimitThatIsLoweredHolds) {
  auto first = admit({.most_concurrent = 5, .tokens_per_minute = 600}, 10, 10, 5);
  ASSERT_TRUE(first);
  expect_limited(admit({.most_concurrent = 2}), 1, "2 answers at once, and has 5");
  first->reset();
  EXPECT_TRUE(admit({.most_concurrent = 2}));
}

TEST_F(TenantUseTest, NothingIsLostInRandomTraffic) {
  std::mt19937_64 random(test_seed());
  const TenantLimits limits{.most_concurrent = 20, .most_queued = 10, .tokens_per_minute = 10'000, .kv_bytes = 900'000};
  std::vector<std::unique_ptr<Admission>> running;
  for (int i = 0; i < 5000; ++i) {
    clock_.advance_us(static_cast<int64_t>(random() % kSecondUs));
    const auto number = [&](uint64_t most) { return static_cast<int>(random() % most); };
    if (!running.empty() && number(3) == 0) {
      const size_t at = random() % running.size();
      running[at]->settle({number(100), number(50), number(50), {}});
      running.erase(running.begin() + static_cast<ptrdiff_t>(at));
    } else if (!running.empty() && number(2) == 0) {
      const size_t at = random() % running.size();
      (void)running[at]->accepted(0, number(100));
      running[at]->answered(0);
    } else if (auto made = admit(limits, number(100), number(100), 1 + number(3), 1 + random() % 2)) {
      running.push_back(std::move(*made));
    }
    const TenantUse::Held held = use_->held();
    ASSERT_TRUE(held.concurrent >= 0 && held.concurrent <= 20 && held.queued >= 0 && held.queued <= 10);
    ASSERT_LE(held.kv_bytes, 900'000u);
  }
  running.clear();
  EXPECT_EQ(use_->held().concurrent, 0);
  EXPECT_EQ(use_->held().queued, 0);
  EXPECT_EQ(use_->held().kv_bytes, 0u);
}

}  // namespace
}  // namespace pagoda::serve
