#include "engine/batch_builder.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace pagoda::engine {
namespace {

using sched::SeqId;

// A scheduler over a cache with a full and a window group, whose plans are built but computed by nobody.
class BatchBuilderTest : public ::testing::Test {
 protected:
  BatchBuilderTest() { scheduler_.add_model(cache_); }

  void submit(uint64_t id, int n, sched::PromptLogits logits = sched::PromptLogits::kNone) {
    sched::SequenceSpec spec;
    spec.id = SeqId(id);
    for (int i = 0; i < n; ++i) spec.prompt.emplace_back(static_cast<int32_t>(id) * 1000 + i);
    spec.prompt_logits = logits;
    ASSERT_TRUE(scheduler_.submit(std::move(spec)));
  }
  const models::Batch& build(int heads_per_kv = 2) {
    scheduler_.next_step(plan_);
    return builder_.build(plan_, scheduler_, groups_, heads_per_kv, [](SeqId) { return models::SampleMode::kGreedy; });
  }
  void commit() {
    std::vector<sched::StepOutcome> outcomes;
    for (const sched::SeqRows& rows : plan_.rows) {
      const bool samples = rows.sampling == sched::Sampling::kLastRow;
      outcomes.push_back(
          {samples ? sched::StepOutcome::Kind::kSampled : sched::StepOutcome::Kind::kComputed, TokenId(7)});
    }
    scheduler_.commit_step(plan_, outcomes);
  }

  FakeClock clock_;
  sched::Fcfs policy_;
  kv::BlockPool pool_{{.budget_bytes = 64 * 1024, .extent_bytes = 1024}};
  kv::Cache cache_{pool_, kv::ModelId(0),
                   std::vector<kv::GroupSpec>{{.block_bytes = 256}, {.block_bytes = 320, .window_tokens = 40}}};
  sched::Scheduler scheduler_{{.step_tokens = 120}, clock_, policy_};
  sched::StepPlan plan_;
  const std::vector<models::AttentionGroup> groups_{{.window = 0, .layers = {1}, .layout = {}},
                                                    {.window = 40, .layers = {0}, .layout = {}}};
  BatchBuilder builder_;
};

TEST_F(BatchBuilderTest, RowsTablesAndSamples) {
  submit(1, 70);
  submit(2, 3, sched::PromptLogits::kAll);
  const models::Batch& batch = build();
  ASSERT_EQ(batch.n_rows(), 73);
  EXPECT_EQ(batch.tokens[69], TokenId(1069));
  EXPECT_EQ(batch.tokens[70], TokenId(2000));
  EXPECT_EQ(batch.positions[69], 69);
  EXPECT_EQ(batch.positions[70], 0);
  EXPECT_EQ(batch.adapters, std::vector<uint16_t>(73, 0));
  ASSERT_EQ(batch.sequences.size(), 2u);
  EXPECT_EQ(batch.sequences[1].rows.begin, 70);
  EXPECT_EQ(batch.sequences[1].rows.end, 73);
  for (const models::GroupBatch& group : batch.groups) {
    EXPECT_EQ(group.table_begin, (std::vector<int>{0, 3, 4}));
    EXPECT_EQ(group.blocks.size(), 4u);
  }
  // The first samples its last row; of the second every row is wanted, and only the last may be greedy.
  ASSERT_EQ(batch.samples.size(), 4u);
  EXPECT_EQ(batch.samples[0].row, 69);
  EXPECT_EQ(batch.samples[0].mode, models::SampleMode::kGreedy);
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(batch.samples[static_cast<size_t>(i)].row, 69 + i);
    EXPECT_EQ(batch.samples[static_cast<size_t>(i)].mode, models::SampleMode::kLogits);
  }
}

TEST_F(BatchBuilderTest, TilesHoldAtMostTheKernelsRows) {
  for (const int heads_per_kv : {1, 2, 9, 64}) {
    SCOPED_TRACE(heads_per_kv);
    const auto id = static_cast<uint64_t>(heads_per_kv);
    submit(id, 70);
    const models::Batch& batch = build(heads_per_kv);
    const int limit = std::max(1, kernels::kAttentionMaxRows / heads_per_kv);
    int next = 0;
    for (const models::AttentionWork& work : batch.groups[0].work) {
      EXPECT_EQ(work.rows.begin, next);
      EXPECT_GT(work.rows.size(), 0);
      EXPECT_LE(work.rows.size(), limit);
      next = work.rows.end;
    }
    EXPECT_EQ(next, 70);
    commit();
    scheduler_.cancel(SeqId(id));
  }
}

TEST_F(BatchBuilderTest, DecodesContinueAndWindowsForget) {
  submit(1, 100);
  build();
  commit();
  const models::Batch& batch = build();
  ASSERT_EQ(batch.n_rows(), 1);
  EXPECT_EQ(batch.tokens[0], TokenId(7));
  EXPECT_EQ(batch.positions[0], 100);
  ASSERT_EQ(batch.samples.size(), 1u);
  // Position 101 sees 62 and later: block 1 on. Tables stay indexed by position.
  ASSERT_EQ(batch.groups[1].blocks.size(), 4u);
  EXPECT_TRUE(batch.groups[1].blocks[0].is_none());
  EXPECT_FALSE(batch.groups[1].blocks[1].is_none());
  for (const kv::BlockId block : batch.groups[0].blocks) EXPECT_FALSE(block.is_none());
}

}  // namespace
}  // namespace pagoda::engine
