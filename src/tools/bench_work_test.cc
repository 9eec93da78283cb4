#include "tools/bench_work.h"

#include <gtest/gtest.h>

namespace pagoda::tools {
namespace {

BenchWork work_named(std::string_view name) {
  const auto works = parse_works(name);
  EXPECT_TRUE(works) << name;
  return works->front();
}

TEST(BenchWork, NamesSayWhatIsMeasured) {
  const BenchWork prefill = work_named("prefill2k");
  EXPECT_EQ(prefill.kind, WorkKind::kPrefill);
  EXPECT_EQ(prefill.prompt_tokens, 2000);
  EXPECT_EQ(prefill.counted_tokens(), 2000);
  const BenchWork decode = work_named("decode7k");
  EXPECT_EQ(decode.prompt_tokens, 7000);
  EXPECT_EQ(decode.counted_tokens(), decode.output_tokens - 1);
  EXPECT_LT(work_named("decode").prompt_tokens, 100);
  const BenchWork batch = work_named("batch16");
  EXPECT_EQ(batch.n_streams, 16);
  EXPECT_EQ(batch.counted_tokens(), 16 * batch.output_tokens);
  const BenchWork shared = work_named("shared4");
  EXPECT_EQ(shared.prefix_tokens, 2000);
  EXPECT_EQ(shared.held_tokens(), 2000 + 4 * (16 + 64));
  EXPECT_EQ(work_named("accuracy").kind, WorkKind::kAccuracy);
}

TEST(BenchWork, ListsKeepTheirOrderWithoutDoubles) {
  const auto works = parse_works("decode,prefill128,decode");
  ASSERT_TRUE(works);
  ASSERT_EQ(works->size(), 2U);
  EXPECT_EQ((*works)[0].name, "decode");
  EXPECT_EQ((*works)[1].name, "prefill128");
}

TEST(BenchWork, UnknownNamesAreNamed) {
  for (const char* list : {"", "prefill", "prefill0", "prefill-1", "prefillx", "prefill9999999k", "batch", "batch9999",
                           "fly", "decode,", "decode,,prefill1", "prefill2kk", "accuracy2", "prefill99999999999999"}) {
    const auto works = parse_works(list);
    ASSERT_FALSE(works) << list;
    EXPECT_EQ(works.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_NE(parse_works("decode,fly").error().message.find("\"fly\""), std::string::npos);
}

TEST(BenchWork, QuickIsLess) {
  EXPECT_LT(default_works(Thoroughness::kQuick).size(), default_works(Thoroughness::kFull).size());
  const BenchWork work = shortened(work_named("shared4"));
  EXPECT_EQ(work.name, "shared4");
  EXPECT_LT(work.context_tokens(), work_named("shared4").context_tokens() / 4);
  EXPECT_EQ(shortened(work_named("prefill512")).prompt_tokens, 512);
}

ModelCosts costs_of(double body_bytes, double kv_bytes) {
  ModelCosts costs;
  costs.body[0] = 1;
  costs.head[0] = 1;
  costs.body_bytes = body_bytes;
  costs.n_heads = 1;
  costs.head_dim = 16;
  costs.kv = {{.n_layers = 1, .window = 0, .bytes_per_token = kv_bytes}};
  return costs;
}

TEST(BenchWork, ChunksReadTheWeightsAgain) {
  const BenchWork work = work_named("prefill1000");
  const ModelCosts costs = costs_of(1000, 0);
  const auto actual = actual_steps(costs, work, 256);
  EXPECT_EQ(actual.size(), 4U);
  const auto ideal = ideal_steps(costs, work);
  EXPECT_EQ(ideal.size(), 1U);
  double operations = 0;
  for (const StepCost& step : actual) operations += step.operations();
  EXPECT_DOUBLE_EQ(operations, ideal.front().operations());
}

TEST(BenchWork, DecodeLeavesThePromptOut) {
  const BenchWork work = work_named("decode");
  const ModelCosts costs = costs_of(1000, 10);
  EXPECT_EQ(ideal_steps(costs, work).size(), static_cast<size_t>(work.output_tokens - 1));
  EXPECT_EQ(ideal_steps(costs, work).front().bytes, 1000 + 10 * (work.prompt_tokens + 1));
}

TEST(BenchWork, TheWorkingSetIsWhatTheLastStepReads) {
  const ModelCosts costs = costs_of(1000, 10);
  const BenchWork shared = work_named("shared4");
  EXPECT_EQ(working_set_bytes(costs, shared), 1000 + 10 * (2000 + 4 * (16 + 63)));
  EXPECT_EQ(working_set_bytes(costs, work_named("prefill100")), 1000 + 10 * 100);
}

}  // namespace
}  // namespace pagoda::tools
