#include "tools/bench_result.h"

#include <gtest/gtest.h>

namespace pagoda::tools {
namespace {

BenchLine line_of(std::string work, std::vector<double> runs, std::string hash = "ab") {
  BenchLine line;
  line.work = std::move(work);
  line.runs = std::move(runs);
  line.hash = std::move(hash);
  line.hash_of = "tokens";
  return line;
}

TEST(BenchResult, MedianAndSpread) {
  EXPECT_EQ(line_of("a", {3, 1, 2}).median(), 2);
  EXPECT_EQ(line_of("a", {4, 1, 2, 3}).median(), 2.5);
  EXPECT_EQ(line_of("a", {90, 100, 110}).spread(), 0.1);
  EXPECT_EQ(line_of("a", {5}).spread(), 0);
  EXPECT_EQ(line_of("a", {}).median(), 0);
}

TEST(BenchResult, JsonReadsBack) {
  BenchResult result;
  result.setup = {.pagoda = "1.2.3",
                  .unix_s = 1764500000,
                  .effort = "quick",
                  .cpu = "A \"CPU\"",
                  .model = "m",
                  .model_bytes = 123,
                  .isa = "avx2",
                  .arithmetic = "int8",
                  .kv_format = "auto",
                  .threads = 2,
                  .context_tokens = 2048,
                  .weight_bytes = 1e8,
                  .kv_bytes_per_token = 11880,
                  .core_share = 0.5};
  result.lines = {line_of("decode", {10.5, 11.25}), line_of("prefill512", {1000})};
  result.lines[1].bound = Bound::kOperations;
  result.lines[1].limit = 2000;
  result.left_out = {{"decode7k", "too long"}};
  result.accuracy = {{.arithmetic = "int8", .nll = 3.25, .difference = 0.002, .allowed = 0.01, .logits_hash = "cd"}};
  const auto read = parse_bench_result(to_json(result), "file");
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->setup.cpu, result.setup.cpu);
  EXPECT_EQ(read->setup.threads, 2);
  EXPECT_EQ(read->setup.core_share, 0.5);
  EXPECT_EQ(read->setup.model_bytes, 123U);
  ASSERT_EQ(read->lines.size(), 2U);
  EXPECT_EQ(read->lines[0].runs, result.lines[0].runs);
  EXPECT_EQ(read->lines[0].hash, "ab");
  EXPECT_EQ(read->lines[1].bound, Bound::kOperations);
  EXPECT_EQ(read->lines[1].limit, 2000);
  ASSERT_EQ(read->accuracy.size(), 1U);
  EXPECT_TRUE(read->accuracy[0].within());
  EXPECT_EQ(read->accuracy[0].logits_hash, "cd");
  EXPECT_TRUE(differing_settings(result.setup, read->setup).empty());
}

// A stored result is printed as the one that was measured.
TEST(BenchResult, EverythingThatIsPrintedReadsBack) {
  BenchResult result;
  result.lines = {line_of("decode", {10.5, 11.25})};
  result.lines[0].preemptions = 3;
  result.lines[0].cached_tokens = 64;
  result.left_out = {{"decode7k", "too long"}};
  result.accuracy_tokens = 128;
  result.accuracy = {{.arithmetic = "f32", .nll = 3.25, .logits_hash = "cd"}};
  const auto read = parse_bench_result(to_json(result), "file");
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->accuracy_tokens, 128);
  EXPECT_EQ(read->lines[0].preemptions, 3);
  EXPECT_EQ(read->lines[0].cached_tokens, 64);
  ASSERT_EQ(read->left_out.size(), 1U);
  EXPECT_EQ(read->left_out[0].work, "decode7k");
  EXPECT_EQ(read->left_out[0].why, "too long");
  EXPECT_EQ(to_json(*read), to_json(result));
}

TEST(BenchResult, WhatIsNoResultIsRefused) {
  for (const char* json :
       {"", "[]", "{}", "{\"schema\":1}", "{\"schema\":2,\"results\":[]}", "{\"schema\":1,\"results\":[1]}",
        "{\"schema\":1,\"results\":[{\"work\":\"a\"}]}", "{\"schema\":1,\"results\":[{\"work\":\"a\",\"runs\":[]}]}",
        "{\"schema\":1,\"results\":[{\"work\":\"a\",\"runs\":[\"b\"]}]}",
        "{\"schema\":1,\"results\":[{\"work\":\"a\",\"runs\":[-1]}]}", "{\"schema\":1,\"results\":[],\"accuracy\":[0]}",
        "{\"schema\":1,\"results\":[],\"setup\":3}"}) {
    const auto read = parse_bench_result(json, "old.json");
    ASSERT_FALSE(read) << json;
    EXPECT_EQ(read.error().code, ErrorCode::kBadFile);
    EXPECT_NE(read.error().message.find("old.json"), std::string::npos);
  }
  EXPECT_TRUE(parse_bench_result("{\"schema\":1,\"results\":[],\"new_member\":{}}", "old.json"));
}

Verdict verdict(std::vector<double> before, std::vector<double> after) {
  BenchResult a;
  BenchResult b;
  a.lines = {line_of("w", std::move(before))};
  b.lines = {line_of("w", std::move(after))};
  return compare(a, b).front().verdict;
}

TEST(BenchResult, ADifferenceExceedsTheNoiseWhereRangesDoNotOverlap) {
  EXPECT_EQ(verdict({100, 101, 102}, {103, 104, 105}), Verdict::kFaster);
  EXPECT_EQ(verdict({103, 104, 105}, {100, 101, 102}), Verdict::kSlower);
  EXPECT_EQ(verdict({100, 101, 104}, {103, 105, 106}), Verdict::kNoise);
  EXPECT_EQ(verdict({100, 102}, {102, 103}), Verdict::kNoise);
  EXPECT_EQ(verdict({100}, {200, 201}), Verdict::kUnknown);
}

TEST(BenchResult, LinesMeetByName) {
  BenchResult before;
  BenchResult after;
  before.lines = {line_of("old", {1, 1}), line_of("both", {10, 10})};
  after.lines = {line_of("new", {2, 2}), line_of("both", {20, 20}, "ef")};
  const auto lines = compare(before, after);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].work, "new");
  EXPECT_EQ(lines[0].before, nullptr);
  EXPECT_EQ(lines[1].work, "both");
  EXPECT_EQ(lines[1].ratio, 2);
  EXPECT_EQ(lines[1].same_bits, false);
  EXPECT_EQ(lines[2].work, "old");
  EXPECT_EQ(lines[2].after, nullptr);
  EXPECT_FALSE(lines[2].same_bits);
}

TEST(BenchResult, SettingsThatDifferAreNamed) {
  BenchSetup a;
  BenchSetup b;
  a.threads = 2;
  b.threads = 4;
  b.isa = "avx2";
  const auto differing = differing_settings(a, b);
  ASSERT_EQ(differing.size(), 2U);
  EXPECT_EQ(differing[1], "threads 2 and 4");
}

TEST(BenchResult, AccuracyIsBoundBothWays) {
  EXPECT_TRUE((AccuracyLine{.arithmetic = "f32", .logits_hash = {}}.within()));
  EXPECT_FALSE((AccuracyLine{.arithmetic = "int8", .difference = 0.02, .allowed = 0.01, .logits_hash = {}}.within()));
  EXPECT_FALSE((AccuracyLine{.arithmetic = "int8", .difference = -0.02, .allowed = 0.01, .logits_hash = {}}.within()));
}

}  // namespace
}  // namespace pagoda::tools
