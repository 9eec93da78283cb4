// TenantUse: what a tenant has of its limits at the moment. Admission: one call's part of that, given back when it ends.
//
//   admit     before the call goes to the engine, by what may be guessed of it: the length of its prompts in bytes, and max_tokens
//   accepted  a prompt's tokens are known: the K and V that it may come to hold are counted anew
//   settle    the call has ended: the minute's tokens are charged by what it used
//
// A TenantUse outlives reloads of the key file: limits come with each call. It is nobody's where there are none.
// Threads: any; of an Admission one at a time.     Errors: kRateLimited with the time to wait; kInvalidArgument for what could never be
// admitted: a message names the limit.     Cost: O(prompts of the call).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "serve/tenant.h"
#include "serve/token_bucket.h"

namespace pagoda::serve {

// Something like four bytes of text are a token, and unlimited answers often end before that many.
inline constexpr int kGuessedTokenBytes = 4;
inline constexpr int kGuessedAnswerTokens = 256;

class Admission;

class TenantUse : public std::enable_shared_from_this<TenantUse> {
 public:
  explicit TenantUse(const Clock& clock) : clock_(clock), bucket_(clock.now_us()) {}

  // All prompts of a call.
  Result<std::unique_ptr<Admission>> admit(std::shared_ptr<const Tenant> tenant, const engine::ModelInfo& model,
                                           std::span<const engine::Request> requests);

  struct Held {
    int concurrent = 0;  // answers
    int queued = 0;      // of those, without a token
    uint64_t kv_bytes = 0;
  };
  Held held() const;

 private:
  friend class Admission;
  // What a call counts for.
  struct Load {
    int n_answers = 0;
    int64_t tokens = 0;
    uint64_t kv_bytes = 0;
  };
  static Status check_possible(const TenantLimits& limits, const Load& load);
  Status check_now(const TenantLimits& limits, const Load& load);
  int retry_after_s(int most_concurrent) const;

  const Clock& clock_;
  mutable std::mutex mutex_;
  // guarded by mutex_
  Held held_;
  TokenBucket bucket_;
  double answer_us_ = 0;  // that answers took lately, from admission to end
};

class Admission {
 public:
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // kRateLimited, kInvalidArgument: with so many tokens it would hold more K and V than the tenant may.
  Status accepted(size_t prompt, int prompt_tokens);
  // The prompt's first token came: none of its answers is queued any more.
  void answered(size_t prompt);
  // Once; then all is given back.
  void settle(const engine::Usage& used);

 private:
  friend class TenantUse;
  struct PromptLoad {
    int n_choices = 1;
    std::optional<int> max_tokens{};
    uint64_t kv_bytes = 0;
    bool is_queued = true;
  };
  Admission() = default;
  uint64_t kv_bytes(const PromptLoad& prompt, int64_t prompt_tokens) const;

  std::shared_ptr<TenantUse> use_;  // null: settled
  std::shared_ptr<const Tenant> tenant_;
  std::vector<PromptLoad> prompts_;
  int64_t context_tokens_ = 0;
  uint64_t kv_token_bytes_ = 0;
  int64_t charged_tokens_ = 0;
  int64_t begin_us_ = 0;
};

}  // namespace pagoda::serve
