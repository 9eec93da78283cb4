#include "tools/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/memory_plan.h"
#include "engine/test_models.h"
#include "kv/block_pool.h"
#include "models/kv_plan.h"

namespace pagoda::tools {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

PlannedModel shape(std::string_view slug) { return planned_model(*find_shape(slug), tensor::DType::kQ4_K); }

Plan plan_of(std::string_view slug, PlanRequest request) {
  auto plan = make_plan(shape(slug), std::move(request));
  EXPECT_TRUE(plan);
  return std::move(*plan);
}

const FormatPlan& format_of(const Plan& plan, std::string_view name) {
  return *std::ranges::find(plan.formats, name, &FormatPlan::name);
}

MachineRates rates_of(double bytes_per_s, double ops_per_s) {
  MachineRates rates{.read_bytes_per_s = bytes_per_s, .dots = {}};
  rates.dots.fill(ops_per_s);
  return rates;
}

// 2 * 32 layers * 32 heads * 128 * 2 bytes * tokens.
TEST(Planner, LlamaTwoSevenBillionTakesAGibibyteAtTwoThousandTokens) {
  const Plan plan = plan_of("llama-2-7b", {.context_tokens = 2048, .memory_bytes = 32 * kGiB});
  EXPECT_EQ(format_of(plan, "f16").bytes_per_token, 524'288u);
  EXPECT_EQ(format_of(plan, "f16").sequence_bytes, 1'073'741'824u);
  EXPECT_EQ(format_of(plan, "bf16").sequence_bytes, kGiB);
  EXPECT_EQ(format_of(plan, "q8").sequence_bytes, 2048u * 2 * 32 * 32 * (128 + 2));
  EXPECT_EQ(format_of(plan, "k16v8").sequence_bytes, 2048u * 32 * 32 * (256 + 130));
}

TEST(Planner, LlamaTwoSevenBillionTakesSixteenGibibytesAt32k) {
  const Plan plan = plan_of("llama-2-7b", {.context_tokens = 32768, .memory_bytes = 32 * kGiB});
  EXPECT_EQ(format_of(plan, "f16").sequence_bytes, 16 * kGiB);  // longer than it was trained for: memory is arithmetic
  EXPECT_EQ(plan.batches.back().context_tokens, 32768);
}

TEST(Planner, SharedHeadsTakeLess) {
  const Plan plan = plan_of("llama-3-8b", {.context_tokens = 2048, .memory_bytes = 32 * kGiB});
  EXPECT_EQ(format_of(plan, "f16").bytes_per_token, 131'072u);
  ASSERT_EQ(plan.sharing.size(), 3u);
  EXPECT_EQ(plan.sharing[0].sequence_bytes[0], kGiB);  // as Llama 2
  EXPECT_EQ(plan.sharing[1].sequence_bytes[0], kGiB / 4);
  EXPECT_TRUE(plan.sharing[1].is_this);
  EXPECT_EQ(plan.sharing[2].sequence_bytes[0], kGiB / 32);
}

TEST(Planner, EveryShapeHasOneSharingThatIsItsOwn) {
  for (const PublicShape& public_shape : public_shapes()) {
    const Plan plan = plan_of(public_shape.slug, {.context_tokens = 512, .memory_bytes = kGiB});
    EXPECT_EQ(std::ranges::count_if(plan.sharing, &SharingPlan::is_this), 1) << public_shape.slug;
    EXPECT_EQ(plan.sharing.front().n_kv_heads, public_shape.n_heads);
    EXPECT_EQ(plan.sharing.back().n_kv_heads, 1);
  }
}

TEST(Planner, KBiasTakesKInBf16) {
  const Plan qwen = plan_of("qwen2.5-0.5b", {.memory_bytes = kGiB});
  EXPECT_EQ(format_of(qwen, "auto").bytes_per_token, format_of(qwen, "k16v8").bytes_per_token);
  const Plan llama = plan_of("llama-3-8b", {.memory_bytes = kGiB});
  EXPECT_EQ(format_of(llama, "auto").bytes_per_token, format_of(llama, "q8").bytes_per_token);
}

TEST(Planner, FormatsOfFourBits) {
  const Plan plan = plan_of("llama-3-8b", {.memory_bytes = kGiB});
  EXPECT_EQ(format_of(plan, "q4").bytes_per_token, 32u * 8 * 2 * (64 + 2));
  EXPECT_EQ(format_of(plan, "k8v4").bytes_per_token, 32u * 8 * (130 + 66));
  EXPECT_EQ(format_of(plan, "q4").note, "");
  const Plan qwen = plan_of("qwen2.5-0.5b", {.memory_bytes = kGiB});
  EXPECT_EQ(format_of(qwen, "q4").note, "as k16v4");
  EXPECT_EQ(format_of(qwen, "q4").bytes_per_token, format_of(qwen, "k16v4").bytes_per_token);
}

// The layers that see everything grow; the others hold their window and one block.
TEST(Planner, WindowsKeepTheirWindow) {
  const Plan plan = plan_of("gemma-3-270m", {.context_tokens = 8192, .memory_bytes = kGiB});
  const FormatPlan& f16 = format_of(plan, "f16");
  EXPECT_EQ(f16.bytes_per_token, 3 * 1024u);
  EXPECT_EQ(f16.window_bytes_per_token, 15 * 1024u);
  EXPECT_EQ(f16.sequence_bytes, 8192u * 3 * 1024 + (512 + 32) * 15 * 1024);
  EXPECT_EQ(f16.prefill_bytes, 8192u * 3 * 1024 + (512 + 32 + 256) * 15 * 1024);
  const Plan brief = plan_of("gemma-3-270m", {.context_tokens = 100, .memory_bytes = kGiB});
  EXPECT_EQ(format_of(brief, "f16").sequence_bytes, 128u * 18 * 1024);  // whole blocks of 32
  const Plan all_local = plan_of("mistral-7b-v0.1", {.context_tokens = 32768, .memory_bytes = kGiB});
  EXPECT_EQ(format_of(all_local, "f16").bytes_per_token, 0u);
  EXPECT_EQ(format_of(all_local, "f16").sequence_bytes, (4096u + 32) * 131'072);
}

TEST(Planner, MemoryIsWeightsOverheadAndKv) {
  const Plan plan = plan_of("llama-2-7b", {.memory_bytes = 8 * kGiB});
  EXPECT_EQ(plan.weight_bytes + plan.overhead_bytes + plan.room_bytes, 8 * kGiB);
  EXPECT_EQ(plan.short_bytes, 0u);
  const Plan little = plan_of("llama-2-7b", {.memory_bytes = kGiB});
  EXPECT_EQ(little.room_bytes, 0u);
  EXPECT_EQ(little.short_bytes, little.fit.least_limit_bytes - kGiB);
  EXPECT_EQ(plan_of("llama-2-7b", {.memory_bytes = kGiB + little.short_bytes}).short_bytes, 0u);
  EXPECT_EQ(little.users.front().context_tokens, 0);
  EXPECT_EQ(little.largest_count, 0u);
  const Plan given = plan_of("llama-2-7b", {.memory_bytes = kGiB, .kv_memory_bytes = 4 * kGiB});
  EXPECT_EQ(given.room_bytes, 4 * kGiB);
}

TEST(Planner, LargestContextAndCountAreThePointsWhereItStopsFitting) {
  for (const std::string_view slug : {"llama-3.1-8b", "gemma-3-12b", "smollm2-135m"}) {
    for (const std::string_view format : {"f16", "q8", "q4"}) {
      const KvRoom room{*groups_of(shape(slug), format), 3 * kGiB, 256};
      for (const uint64_t users : {1, 3, 50}) {
        const int context = room.largest_context(users);
        EXPECT_TRUE(room.holds(users, context));
        EXPECT_FALSE(room.holds(users, context + 1));
      }
      const uint64_t count = room.largest_count(1000);
      EXPECT_TRUE(room.holds(count, 1000));
      EXPECT_FALSE(room.holds(count + 1, 1000));
    }
  }
}

// A pool of that budget really deals the blocks.
TEST(Planner, APoolHoldsWhatThePlanSays) {
  const KvRoom room{*groups_of(shape("smollm2-135m"), "q8"), 100'000'000, 256};
  const size_t block_bytes = room.groups.front().layout.block_bytes;
  kv::BlockPool pool({.budget_bytes = room.bytes, .extent_bytes = kv::choose_extent_bytes({&block_bytes, 1})});
  const kv::ClassId size_class = pool.add_class(block_bytes);
  std::vector<kv::BlockId> blocks;
  while (const auto block = pool.allocate(size_class)) blocks.push_back(*block);
  EXPECT_EQ(room.largest_context(1), static_cast<int>(blocks.size()) * kv::kBlockTokens);
  for (const kv::BlockId block : blocks) pool.unref(block);
}

// Rounded to extents like what fits: `tokens` is what one sequence may have where nothing has a window, and never a whole sequence more.
TEST(Planner, TokensAgreeWithSequencesAndUsers) {
  for (const char* slug : {"llama-2-7b", "llama-3-8b", "smollm2-135m", "gemma-3-12b", "mistral-7b-v0.1"}) {
    for (const std::string_view format : {"bf16", "k16v8", "q8", "q4"}) {
      for (const uint64_t bytes : {uint64_t{0}, kGiB / 100, 3 * kGiB, 11 * kGiB}) {
        const KvRoom room{*groups_of(shape(slug), format), bytes, 512};
        const uint64_t tokens = room.tokens(2048);
        EXPECT_EQ(tokens / 2048, room.largest_count(2048)) << slug << " " << format << " " << bytes;
        if (room.groups.size() > 1 || room.groups[0].window > 0) continue;
        EXPECT_EQ(tokens, static_cast<uint64_t>(room.largest_context(1))) << slug << " " << format << " " << bytes;
        EXPECT_LE(8 * static_cast<uint64_t>(room.largest_context(8)), tokens);
      }
    }
  }
  const Plan plan = plan_of("llama-3-8b", {.context_tokens = 2048, .memory_bytes = 16 * kGiB, .users = 8});
  const FormatPlan& q8 = format_of(plan, "q8");
  EXPECT_EQ(q8.memory_tokens / 2048, q8.sequences);
  EXPECT_GE(q8.memory_tokens, 8 * static_cast<uint64_t>(plan.users[0].memory_tokens));
}

TEST(Planner, TokensOfATier) {
  const auto groups = *groups_of(shape("llama-2-7b"), "f16");
  EXPECT_EQ(tokens_in(groups, 0, 2048), 0u);
  EXPECT_EQ(tokens_in(groups, kGiB, 2048), 2048u);
  EXPECT_EQ(tokens_in(groups, 100 * kGiB, 2048), 204'800u);
  EXPECT_EQ(tokens_in(groups, kGiB + 32 * 524'288, 2048), 2048u + 32);
  const Plan plan = plan_of("llama-2-7b", {.memory_bytes = 32 * kGiB, .disk_bytes = 100 * kGiB});
  EXPECT_EQ(format_of(plan, "f16").disk_tokens, 204'800u);
}

TEST(Planner, BoundsFollowFromBytesAndOperations) {
  PlanRequest request{.context_tokens = 2048, .memory_bytes = 32 * kGiB, .users = 4, .format = "f16"};
  request.rates = rates_of(100e9, 1e18);
  const Plan plan = plan_of("llama-2-7b", request);
  ASSERT_EQ(plan.bounds.size(), 3u);
  const BoundPlan& decode = plan.bounds[1];
  EXPECT_EQ(decode.bound, Bound::kBandwidth);
  EXPECT_NEAR(decode.tokens_per_s, 100e9 / decode.cost.bytes, 1e-9);
  EXPECT_NEAR(decode.cost.bytes - plan.bounds[2].cost.bytes, -3.0 * kGiB, 1);  // three more contexts, the same weights
  request.rates = rates_of(1e18, 1e12);
  const BoundPlan prefill = plan_of("llama-2-7b", request).bounds.front();
  EXPECT_EQ(prefill.bound, Bound::kOperations);
  EXPECT_NEAR(prefill.tokens_per_s, 2048 * 1e12 / prefill.cost.operations(), 1e-6);
  EXPECT_TRUE(plan_of("llama-2-7b", {.memory_bytes = kGiB}).bounds.empty());
}

TEST(Planner, UnknownFormatsAreNamedWithThoseThereAre) {
  const auto groups = groups_of(shape("llama-2-7b"), "q3");
  ASSERT_FALSE(groups);
  EXPECT_THAT(groups.error().message, testing::AllOf(testing::HasSubstr("q3"), testing::HasSubstr("k16v8")));
}

TEST(Planner, AFilesPlanIsTheEnginesOwn) {
  for (const char* name : {"tiny-llama", "tiny-qwen2", "tiny-gemma3"}) {
    const auto gguf = weights::Gguf::open(engine::tiny_model(name));
    ASSERT_TRUE(gguf) << name;
    const auto model = planned_model(*gguf);
    ASSERT_TRUE(model) << name;
    for (const std::string_view format : {"auto", "q8", "bf16", "k8v4", "q4"}) {
      const auto planned = *groups_of(*model, format);
      const auto real = *models::plan_groups(*gguf, model->config, format);
      ASSERT_EQ(planned.size(), real.size());
      for (size_t g = 0; g < real.size(); ++g) {
        EXPECT_EQ(planned[g].layout.block_bytes, real[g].layout.block_bytes) << name;
        EXPECT_EQ(planned[g].window, real[g].window);
        EXPECT_EQ(planned[g].layers, real[g].layers);
      }
    }
  }
}

TEST(Planner, AutoIsWhatWasProbed) {
  const auto gguf = weights::Gguf::open(engine::tiny_model("tiny-qwen2"));
  ASSERT_TRUE(gguf);
  PlannedModel model = *planned_model(*gguf);
  const auto bytes = [&] { return groups_of(model, "auto")->front().layout.bytes_per_token(); };
  const size_t by_rule = bytes();  // K of every layer in bf16
  model.auto_format = "k16v8,q8*3";
  EXPECT_LT(bytes(), by_rule);
  EXPECT_GT(bytes(), groups_of(model, "q8")->front().layout.bytes_per_token());
}

}  // namespace
}  // namespace pagoda::tools
