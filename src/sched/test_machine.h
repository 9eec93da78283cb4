// Machine: what steps take on a fake machine of known costs, with noise. LoadWorld: a scheduler of one model on it and a fake clock; nothing is
// computed, so it serves 10^5 requests in seconds. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "base/test_seed.h"
#include "sched/scheduler.h"

namespace pagoda::sched {

// About a 135M model on two cores.
struct Machine {
  double step_us = 2500, decode_us = 900, prefill_us = 420, decode_token_us = 0.4, prefill_token_us = 0.03;
  std::mt19937 random{test_seed()};

  double true_us(const StepLoad& load) const {
    return step_us + decode_us * load.decode_rows + prefill_us * load.prefill_rows +
           decode_token_us * static_cast<double>(load.decode_context) +
           prefill_token_us * static_cast<double>(load.prefill_context);
  }
  int64_t run(const StepLoad& load) {
    return static_cast<int64_t>(true_us(load) * std::uniform_real_distribution(0.9, 1.1)(random));
  }
  // Costs so many times as high, from now on.
  void slow_down(double factor) {
    for (double* cost : {&step_us, &decode_us, &prefill_us, &decode_token_us, &prefill_token_us}) *cost *= factor;
  }
};

class LoadWorld {
 public:
  struct Client {
    Share share{};
    int n_wanted = 0;
    int64_t submitted_us = 0, first_us = -1, last_us = -1;
    std::vector<int64_t> gaps_us{};
    FinishReason reason = FinishReason::kNone;
  };

  explicit LoadWorld(const SchedConfig& config, size_t n_blocks = 4096)
      : pool_({.budget_bytes = n_blocks * kBlockBytes, .extent_bytes = 4 * kBlockBytes}),
        cache_(pool_, kv::ModelId(0), std::vector<kv::GroupSpec>{{.block_bytes = kBlockBytes}}),
        scheduler(config, clock, policy_) {
    scheduler.add_model(cache_);
  }

  SeqId submit(int n_prompt, int n_wanted, Share share = {}, int32_t priority = 0, int64_t timeout_us = 0) {
    const SeqId id(++n_submitted_);
    SequenceSpec spec;
    spec.id = id;
    spec.share = share;
    spec.priority = priority;
    spec.prompt.assign(static_cast<size_t>(n_prompt), TokenId(static_cast<int32_t>(n_submitted_ % 30'000)));
    if (timeout_us > 0) spec.deadline_us = clock.now_us() + timeout_us;
    EXPECT_TRUE(scheduler.submit(std::move(spec)));
    clients[id] = {.share = share, .n_wanted = n_wanted, .submitted_us = clock.now_us()};
    return id;
  }

  // False: there was nothing to run.
  bool step() {
    scheduler.next_step(plan);
    for (const EndedSeq& ended : plan.ended) end(ended.seq, ended.reason);
    if (plan.empty()) return false;
    clock.advance_us(machine.run(plan.load()));
    outcomes_.clear();
    for (const SeqRows& rows : plan.rows) {
      const bool samples = rows.sampling == Sampling::kLastRow;
      outcomes_.push_back(samples ? StepOutcome{StepOutcome::Kind::kSampled, TokenId(7)} : StepOutcome{});
      served[clients[rows.seq].share.tenant] += rows.n_tokens;
    }
    scheduler.commit_step(plan, outcomes_);
    for (const SeqRows& rows : plan.rows) {
      if (rows.sampling == Sampling::kLastRow) take_token(rows.seq);
    }
    return true;
  }
  void run_until(int64_t until_us) {
    while (clock.now_us() < until_us && step()) {
    }
  }
  void run_all() {
    while (!scheduler.idle() && step()) {
    }
    ASSERT_TRUE(scheduler.idle());
    ASSERT_EQ(pool_.stats().live_blocks, 0u);
  }

  bool has_ended(SeqId id) { return clients.at(id).reason != FinishReason::kNone; }
  int64_t ttft_us(SeqId id) { return clients.at(id).first_us - clients.at(id).submitted_us; }

 private:
  static constexpr size_t kBlockBytes = 256;

  void take_token(SeqId id) {
    Client& client = clients.at(id);
    const int64_t now_us = clock.now_us();
    if (client.first_us < 0) {
      client.first_us = now_us;
    } else {
      client.gaps_us.push_back(now_us - client.last_us);
    }
    client.last_us = now_us;
    if (--client.n_wanted > 0) return;
    scheduler.finish(id, FinishReason::kStop);
    end(id, FinishReason::kStop);
  }
  void end(SeqId id, FinishReason reason) {
    clients.at(id).reason = reason;
    ended.push_back(id);
  }

  AgedPriority policy_{kAgeUs};
  kv::BlockPool pool_;
  kv::Cache cache_;
  uint64_t n_submitted_ = 0;
  std::vector<StepOutcome> outcomes_;

 public:
  FakeClock clock;
  Machine machine;
  Scheduler scheduler;
  StepPlan plan;
  std::unordered_map<SeqId, Client> clients;
  std::vector<SeqId> ended;            // in that order
  std::map<TenantId, int64_t> served;  // rows
};

inline int64_t percentile(std::vector<int64_t> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace pagoda::sched
