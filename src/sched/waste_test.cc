// What of the KV budget holds no token, on a mixed trace: lengths 16 to 8k of mean 1k, 64 at a time, as many as fill the budget. No model
// runs; blocks have the sizes that SmolLM2's and Gemma 3's have in q8. Prints the figures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <unordered_map>

#include "kv/accounting.h"
#include "sched/scheduler.h"

namespace pagoda::sched {
namespace {

constexpr int kSequences = 64;
constexpr int kInLine = 96;  // those included: somebody always waits for room
constexpr int kRequests = 4000;

// Sums over the looks at the pool.
struct Waste {
  struct Group {
    double slots = 0;   // of live blocks, in tokens
    double empty = 0;   // of those, no token is or will be written there in this step
    double behind = 0;  // of those, tokens that no window reaches any more
    double percent() const { return 100 * empty / slots; }
  };
  std::vector<Group> groups;
  double live_bytes = 0, stranded_bytes = 0, overhead_bytes = 0, budget_bytes = 0;
  double looks = 0, sequences = 0, tokens = 0;
};

class MixedTrace {
 public:
  MixedTrace(std::vector<kv::GroupSpec> groups, int64_t budget_tokens)
      : groups_(std::move(groups)), pool_(pool_config(groups_, budget_tokens)), cache_(make_cache()) {
    scheduler_.add_model(*cache_);
    waste_.groups.resize(groups_.size());
  }

  Waste run() {
    StepPlan plan;
    std::vector<StepOutcome> outcomes;
    for (int step = 0; n_submitted_ < kRequests || !scheduler_.idle(); ++step) {
      while (n_submitted_ < kRequests && left_.size() < kInLine) submit();
      scheduler_.next_step(plan);
      outcomes.clear();
      for (const SeqRows& rows : plan.rows) {
        const bool samples = rows.sampling == Sampling::kLastRow;
        outcomes.push_back(samples ? StepOutcome{StepOutcome::Kind::kSampled, random_token()} : StepOutcome{});
      }
      // Only while there are enough to fill it.
      if (n_submitted_ < kRequests && step > 200 && step % 4 == 0) look();
      const std::vector<SeqRows> rows = plan.rows;
      scheduler_.commit_step(plan, outcomes);
      clock_.advance_us(1000);
      for (const SeqRows& r : rows) {
        if (r.sampling != Sampling::kLastRow || --left_.at(r.seq) > 0) continue;
        scheduler_.finish(r.seq, FinishReason::kStop);
        left_.erase(r.seq);
      }
    }
    EXPECT_TRUE(pool_.check_integrity());
    EXPECT_EQ(pool_.stats().live_blocks, 0u);
    return waste_;
  }

 private:
  static kv::PoolConfig pool_config(const std::vector<kv::GroupSpec>& groups, int64_t budget_tokens) {
    std::vector<size_t> sizes;
    size_t bytes_per_block = 0;
    for (const kv::GroupSpec& group : groups) {
      sizes.push_back(group.block_bytes);
      bytes_per_block += group.window_tokens == 0 ? group.block_bytes : 0;
    }
    return {.budget_bytes = static_cast<size_t>(budget_tokens) / kv::kBlockTokens * bytes_per_block,
            .extent_bytes = kv::choose_extent_bytes(sizes)};
  }
  std::unique_ptr<kv::Cache> make_cache() {
    return std::make_unique<kv::Cache>(pool_, kv::ModelId(0), groups_,
                                       kv::PrefixConfig{.index = &index_, .clock = &clock_});
  }

  TokenId random_token() { return TokenId(static_cast<int32_t>(random_() % 50'000)); }

  // Pareto's density cut at both ends; this exponent gives a mean of 1k.
  int random_length() {
    constexpr double kExponent = 0.115;
    const double u = std::generate_canonical<double, 32>(random_);
    const double low = std::pow(16, -kExponent), high = std::pow(8192, -kExponent);
    return static_cast<int>(std::pow(low - u * (low - high), -1 / kExponent));
  }

  // It generates little, so that long ones stay no longer than short ones, and the mean of those there is the trace's.
  void submit() {
    const int length = random_length();
    const int n_generated = std::min(length / 2, 32 + static_cast<int>(random_() % 64));
    SequenceSpec spec{.id = SeqId(static_cast<uint64_t>(++n_submitted_)), .model = kv::ModelId(0), .prompt = {}};
    for (int i = n_generated; i < length; ++i) spec.prompt.push_back(random_token());
    left_[spec.id] = n_generated;
    const Status status = scheduler_.submit(std::move(spec));
    ASSERT_TRUE(status) << status.error().message;
  }

  void look() {
    std::vector<const kv::KvLease*> leases;
    scheduler_.list_leases(leases);
    const kv::Cache* caches[] = {cache_.get()};
    const kv::Account account = kv::account_of(pool_, caches, leases);
    const kv::PoolStats& pool = account.pool;
    ASSERT_EQ(pool.live_bytes + pool.cached_bytes + pool.free_bytes + pool.overhead_bytes, pool.budget_bytes);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const kv::GroupAccount& group = account.models[0].groups[g];
      waste_.groups[g].slots += static_cast<double>(group.live_blocks * kv::kBlockTokens);
      waste_.groups[g].empty += static_cast<double>(group.wasted_tokens);
      waste_.stranded_bytes += static_cast<double>(group.free_blocks * group.block_bytes);
      for (const kv::KvLease* lease : leases) {
        const int32_t window = groups_[g].window_tokens, n = lease->n_written();
        if (window > 0) waste_.groups[g].behind += std::max(0, n - window - lease->n_dropped(kv::GroupId(g)));
      }
    }
    waste_.live_bytes += static_cast<double>(pool.live_bytes);
    waste_.overhead_bytes += static_cast<double>(pool.overhead_bytes);
    waste_.budget_bytes += static_cast<double>(pool.budget_bytes);
    for (const kv::KvLease* lease : leases) waste_.tokens += lease->n_written();
    waste_.sequences += static_cast<double>(leases.size());
    ++waste_.looks;
  }

  std::vector<kv::GroupSpec> groups_;
  kv::BlockPool pool_;
  kv::PrefixIndex index_{pool_, 5};
  FakeClock clock_;
  Fcfs policy_;
  std::unique_ptr<kv::Cache> cache_;
  Scheduler scheduler_{{.step_tokens = 2048, .max_running = kSequences}, clock_, policy_};
  std::mt19937 random_{2026};
  int n_submitted_ = 0;
  std::unordered_map<SeqId, int> left_;  // tokens still to generate
  Waste waste_;
};

void print(const char* name, const Waste& w) {
  std::printf("%s: %.1f sequences of %.0f tokens; of the budget %.1f %% live, %.2f %% stranded, %.2f %% overhead\n",
              name, w.sequences / w.looks, w.tokens / w.sequences, 100 * w.live_bytes / w.budget_bytes,
              100 * w.stranded_bytes / w.budget_bytes, 100 * w.overhead_bytes / w.budget_bytes);
  for (size_t g = 0; g < w.groups.size(); ++g) {
    std::printf("  group %zu: %.2f %% of live slots empty, %.2f %% behind the window\n", g, w.groups[g].percent(),
                100 * w.groups[g].behind / w.groups[g].slots);
  }
}

// 30 layers of 3 heads of 64.
TEST(WasteTest, OneFullGroup) {
  const Waste waste = MixedTrace({{.block_bytes = 380'160}}, 80 * 1024).run();
  print("one full group", waste);
  EXPECT_LT(waste.groups[0].percent(), 2.0);
  EXPECT_GT(waste.live_bytes, 0.85 * waste.budget_bytes);
  EXPECT_LT(waste.overhead_bytes, 0.02 * waste.budget_bytes);
}

// 3 global and 15 local layers of one head of 256.
TEST(WasteTest, AFullGroupAndAWindow) {
  const Waste waste =
      MixedTrace({{.block_bytes = 49'536}, {.block_bytes = 247'680, .window_tokens = 512}}, 200 * 1024).run();
  print("a full group and a window of 512", waste);
  EXPECT_LT(waste.groups[0].percent(), 2.0);
}

}  // namespace
}  // namespace pagoda::sched
