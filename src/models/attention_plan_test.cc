#include "models/attention_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>

namespace pagoda::models {
namespace {

using kernels::Range;

constexpr int kHeadsPerKv = 3;
constexpr int kKvHeads = 3;
constexpr int kTileTokens = kernels::kAttentionMaxRows / kHeadsPerKv;

AttentionPlan::Shape shape(int n_parts, size_t max_slots = 100'000) {
  return {.n_kv_heads = kKvHeads,
          .heads_per_kv = kHeadsPerKv,
          .head_dim = 64,
          .row_stride = (kHeadsPerKv * kKvHeads + 2 * kKvHeads) * 64,
          .max_rows = 256,
          .n_parts = n_parts,
          .max_slots = max_slots};
}

struct Spec {
  int first_position;
  int n_tokens;
};

struct Step {
  explicit Step(const std::vector<Spec>& specs) {
    batch.groups.resize(1);
    GroupBatch& group = batch.groups[0];
    group.table_begin.push_back(0);
    for (const Spec& spec : specs) {
      const int index = static_cast<int>(batch.sequences.size());
      const int begin = static_cast<int>(batch.positions.size());
      const int end = begin + spec.n_tokens;
      batch.sequences.push_back({{begin, end}, spec.first_position});
      for (int i = 0; i < spec.n_tokens; ++i) batch.positions.push_back(spec.first_position + i);
      group.table_begin.push_back(group.table_begin.back() + (spec.first_position + spec.n_tokens) / 32 + 1);
      for (int row = begin; row < end; row += kTileTokens) {
        AttentionWork work;
        work.sequence = index;
        work.rows = {row, std::min(row + kTileTokens, end)};
        work.spans = {0, batch.positions[static_cast<size_t>(work.rows.end - 1)] / kernels::kSpanTokens + 1};
        group.work.push_back(work);
      }
    }
    group.rows.resize(batch.positions.size());
    std::iota(group.rows.begin(), group.rows.end(), 0);
    step_row = group.rows;
  }
  Batch batch;
  std::vector<int32_t> step_row;
};

// In tokens times rows, loading a token counted as four.
int64_t cost_of(const AttentionPlan& plan, const AttentionPlan::Chunk& chunk) {
  const AttentionPlan::Pass& pass = plan.pass(chunk);
  const int last = plan.position(pass)[pass.n_rows - 1];
  const int end = std::min(chunk.spans.end * kernels::kSpanTokens, last + 1);
  return int64_t{end - chunk.spans.begin * kernels::kSpanTokens} * (pass.n_rows + 4);
}

// Every span of every (pass, KV head) once and in order, slots that do not overlap, and segments of about equal cost.
void check(const AttentionPlan& plan, int n_parts, size_t n_passes) {
  std::map<std::pair<int, int>, int> next;  // (pass, head): span
  std::map<size_t, size_t> slots;           // begin, end
  std::vector<int64_t> costs;
  int64_t coarsest = 0;
  for (const Range level : plan.levels()) {
    for (int s = level.begin; s < level.end; ++s) {
      int64_t cost = 0;
      for (const AttentionPlan::Chunk& chunk : plan.segment(s)) {
        const auto [at, is_first] = next.try_emplace({chunk.pass, chunk.kv_head}, plan.pass(chunk).spans.begin);
        EXPECT_EQ(chunk.spans.begin, at->second);
        EXPECT_GT(chunk.spans.size(), 0);
        at->second = chunk.spans.end;
        if (!is_first) {
          const auto size = static_cast<size_t>(chunk.spans.size()) * static_cast<size_t>(plan.pass(chunk).n_rows);
          EXPECT_TRUE(slots.emplace(chunk.slots, chunk.slots + size).second);
        }
        cost += cost_of(plan, chunk);
        coarsest = std::max(coarsest, kernels::kSpanTokens * (int64_t{plan.pass(chunk).n_rows} + 4));
      }
      costs.push_back(cost);
    }
  }
  EXPECT_EQ(next.size(), n_passes * kKvHeads);
  for (const auto& [item, span] : next) EXPECT_EQ(span, plan.pass({item.first, item.second, {}, 0}).spans.end);
  size_t end = 0;
  for (const auto& [slot_begin, slot_end] : slots) {
    EXPECT_GE(slot_begin, end);
    end = slot_end;
  }
  const int64_t total = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  const int64_t fair = total / n_parts;
  for (const int64_t cost : costs) EXPECT_LE(cost, fair + fair / 4 + coarsest);
}

TEST(AttentionPlanTest, AnyBatchOverAnyNumberOfParts) {
  const std::vector<std::vector<Spec>> batches{
      {{7000, 1}},                                    // one decode
      {{100, 1}},                                     //
      {{7000, 1}, {300, 1}, {12, 1}},                 // decodes of different lengths
      {{0, 256}},                                     // a prompt's first chunk
      {{6900, 200}},                                  // its last
      {{7000, 1}, {3000, 1}, {0, 120}, {2000, 100}},  // mixed
      std::vector<Spec>(64, Spec{.first_position = 700, .n_tokens = 1}),
  };
  for (const int n_parts : {1, 2, 3, 4, 8, 16}) {
    AttentionPlan plan(shape(n_parts));
    for (size_t i = 0; i < batches.size(); ++i) {
      SCOPED_TRACE("batch " + std::to_string(i) + " over " + std::to_string(n_parts));
      const Step step(batches[i]);
      plan.build(step.batch, step.batch.groups[0], step.step_row);
      check(plan, n_parts, step.batch.groups[0].work.size());
    }
  }
}

TEST(AttentionPlanTest, OneDecodeKeepsAllPartsBusy) {
  const Step step({{7167, 1}});  // 28 spans of 3 KV heads
  for (const int n_parts : {2, 4, 8, 16}) {
    AttentionPlan plan(shape(n_parts));
    plan.build(step.batch, step.batch.groups[0], step.step_row);
    ASSERT_EQ(plan.levels().size(), 1u);
    int longest = 0;
    for (int s = 0; s < plan.levels()[0].end; ++s) {
      int spans = 0;
      for (const AttentionPlan::Chunk& chunk : plan.segment(s)) spans += chunk.spans.size();
      longest = std::max(longest, spans);
    }
    EXPECT_LE(longest, 84 / n_parts + 1) << n_parts;
  }
}

TEST(AttentionPlanTest, WithoutSlotsNothingIsCut) {
  const Step step({{7000, 1}});
  AttentionPlan plan(shape(16, 0));
  plan.build(step.batch, step.batch.groups[0], step.step_row);
  int n_chunks = 0;
  for (int s = 0; s < plan.levels()[0].end; ++s) n_chunks += static_cast<int>(plan.segment(s).size());
  EXPECT_EQ(n_chunks, kKvHeads);
}

TEST(AttentionPlanTest, RowsThatNobodyNeedsAreLeftOut) {
  Step step({{0, 100}, {500, 1}});
  std::ranges::fill(step.step_row, -1);
  step.step_row[99] = 0;
  step.step_row[100] = 1;
  AttentionPlan plan(shape(2));
  plan.build(step.batch, step.batch.groups[0], step.step_row);
  for (int s = 0; s < plan.levels()[0].end; ++s) {
    for (const AttentionPlan::Chunk& chunk : plan.segment(s)) {
      const AttentionPlan::Pass& pass = plan.pass(chunk);
      EXPECT_EQ(pass.n_rows, kHeadsPerKv);
      EXPECT_EQ(plan.position(pass)[0], pass.rows.begin == 0 ? 99 : 500);
    }
  }
}

}  // namespace
}  // namespace pagoda::models
