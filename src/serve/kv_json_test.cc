#include "serve/kv_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pagoda::serve {
namespace {

using Json = nlohmann::json;

std::vector<engine::ModelInfo> one_model() {
  std::vector<engine::ModelInfo> models(1);
  models[0].name = "a \"model\"";
  return models;
}

CacheReports some_reports() {
  engine::CacheReport part;
  part.prompt_tokens = 100;
  part.reused_tokens = 70;
  part.copied_tokens = 6;
  part.waited_us = 1500;
  part.preemptions = 2;
  part.recomputed_tokens = 31;
  part.divergence = {70, {TokenId(5), "\"\xff"}, engine::CacheReport::Token{TokenId(6), "b"}};
  part.tiers = {{"disk", 32}};
  part.load_waited_us = 2500;
  part.misses = {{70, kv::MissReason::kCold}, {96, kv::MissReason::kEvicted}, {5, kv::MissReason::kEvicted, 2}};
  engine::CacheReport whole;
  whole.prompt_tokens = 33;
  whole.reused_tokens = 32;
  return {std::make_shared<engine::CacheReport>(whole), nullptr, std::make_shared<engine::CacheReport>(part)};
}

TEST(KvJsonTest, SummarySumsThePrompts) {
  EXPECT_EQ(cache_summary(some_reports()), "reused=102 copied=6 computed=31 miss=cold");
  EXPECT_EQ(cache_summary({nullptr}), "");
  EXPECT_EQ(cache_summary({some_reports()[0]}), "reused=32 copied=0 computed=1 miss=none");
}

TEST(KvJsonTest, AMissInsideTheTemplateSaysSo) {
  engine::CacheReport report;
  report.misses = {{.position = 3, .reason = kv::MissReason::kCold, .is_template = true}};
  const CacheReports reports{std::make_shared<engine::CacheReport>(report)};
  EXPECT_EQ(cache_summary(reports), "reused=0 copied=0 computed=0 miss=template");
  EXPECT_EQ(Json::parse(cache_reports_json("x", reports))["prompts"][0]["misses"][0]["reason"], "template");
}

TEST(KvJsonTest, Reports) {
  const Json json = Json::parse(cache_reports_json("x\"y", some_reports()));
  EXPECT_EQ(json["id"], "x\"y");
  EXPECT_EQ(json["reused_tokens"], 102);
  EXPECT_EQ(json["reused_by_tier"]["ram"], 70);
  EXPECT_EQ(json["reused_by_tier"]["disk"], 32);
  ASSERT_EQ(json["prompts"].size(), 2u);
  EXPECT_EQ(json["prompts"][0]["prompt"], 0);
  EXPECT_TRUE(json["prompts"][0]["first_differing_token"].is_null());
  EXPECT_EQ(json["prompts"][0]["misses"].size(), 0u);
  const Json& part = json["prompts"][1];
  EXPECT_EQ(part["prompt"], 2);
  EXPECT_EQ(part["computed_tokens"], 30);
  EXPECT_EQ(part["first_differing_token"]["index"], 70);
  EXPECT_EQ(part["first_differing_token"]["token"]["text"], "\"\uFFFD");
  EXPECT_EQ(part["first_differing_token"]["cached"]["id"], 6);
  EXPECT_EQ(part["misses"][1], (Json{{"index", 96}, {"reason", "evicted"}}));
  EXPECT_EQ(part["misses"][2], (Json{{"index", 5}, {"reason", "evicted"}, {"after_context_edits", 2}}));
  EXPECT_EQ(part["waited_ms"], 1.5);
  EXPECT_EQ(part["load_waited_ms"], 2.5);
  EXPECT_EQ(part["recomputed_tokens"], 31);
}

TEST(KvJsonTest, Account) {
  kv::Account account;
  account.pool = {.budget_bytes = 1000, .live_bytes = 640, .cached_bytes = 64, .free_bytes = 256, .overhead_bytes = 40};
  account.extent_bytes = 128;
  account.pool.free_extents = 1;
  account.models = {{kv::ModelId(0),
                     {{.block_bytes = 64,
                       .live_blocks = 10,
                       .cached_blocks = 1,
                       .free_blocks = 2,
                       .logical_tokens = 450,
                       .stored_tokens = 300,
                       .reserved_tokens = 1,
                       .wasted_tokens = 19}}}};
  engine::TierReport disk{.name = "disk", .restored_tokens = 64};
  disk.store.drops[static_cast<size_t>(kv::TierDrop::kDiskFull)] = 3;
  Json json = Json::parse(account_json(account, one_model(), std::span(&disk, 1)));
  EXPECT_EQ(json["tiers"][0]["tier"], "disk");
  EXPECT_EQ(json["tiers"][0]["restored_tokens"], 64);
  EXPECT_EQ(json["tiers"][0]["drops"], (Json{{std::string(to_string(kv::TierDrop::kDiskFull)), 3}}));
  EXPECT_EQ(json["tiers"][0]["faults"], Json::object());
  EXPECT_EQ(json["budget_bytes"], 1000);
  EXPECT_EQ(json["internal_waste_bytes"], 38);
  EXPECT_EQ(json["reserved_unused_bytes"], 2);
  EXPECT_EQ(json["stranded_bytes"], 128);
  EXPECT_EQ(json["sharing_factor"], 1.5);
  EXPECT_TRUE(json["index"].is_null());
  EXPECT_TRUE(json["evicted_blocks"].is_null());
  EXPECT_TRUE(json["reuse_distance"].is_null());
  EXPECT_EQ(json["models"][0]["model"], "a \"model\"");
  EXPECT_TRUE(json["models"][0]["groups"][0]["window_tokens"].is_null());
  EXPECT_TRUE(json["sessions"].is_null());
  account.index = kv::PrefixStats{.nodes = 3, .evicted_for_room = 4, .held_bytes = 96, .pinned_bytes = 32};
  account.sessions = kv::SessionStats{.sessions = 2, .pinned = 1};
  account.reuse = kv::ReuseCurve{.looked_up_blocks = 8, .sampled_blocks = 8, .hit_blocks = {1, 2, 3, 4}};
  account.models[0].groups[0].stored_tokens = 0;
  json = Json::parse(account_json(account, {}, {}));
  EXPECT_EQ(json["index"]["nodes"], 3);
  EXPECT_EQ(json["sessions"]["held_bytes"], 96);
  EXPECT_EQ(json["sessions"]["idle_bytes"], 64);
  EXPECT_EQ(json["sessions"]["count"], 2);
  EXPECT_EQ(json["evicted_blocks"]["for_room"], 4);
  EXPECT_EQ(json["reuse_distance"]["hit_rates"][2], (Json{{"budget", 2}, {"bytes", 2000}, {"hit_rate", 0.375}}));
  EXPECT_TRUE(json["sharing_factor"].is_null());
  EXPECT_TRUE(json["models"][0]["model"].is_null());
}

TEST(KvJsonTest, BlockMap) {
  using enum kv::BlockState;
  const kv::BlockMapPage map{
      .page = 1,
      .n_pages = 3,
      .first_extent = 64,
      .n_extents = 64,
      .extents = {
          {65, kv::ModelId(0), kv::GroupId(1), kv::ClassId(1), {{kOpen, 1}, {kSealed, 12}, {kCached, 0}, {kFree, 0}}},
          {70, kv::ModelId(0), kv::GroupId(0), kv::ClassId(0), {{kFree, 0}}}}};
  const Json json = Json::parse(block_map_json(map, one_model()));
  EXPECT_EQ(json["pages"], 3);
  EXPECT_EQ(json["extents"][0]["slots"], "osc.");
  EXPECT_EQ(json["extents"][0]["holders"], (Json{1, 12}));
  EXPECT_EQ(json["extents"][0]["group"], 1);
  EXPECT_EQ(json["extents"][1]["holders"].size(), 0u);
  EXPECT_EQ(Json::parse(block_map_json({.n_pages = 1, .extents = {}}, one_model()))["extents"].size(), 0u);
}

}  // namespace
}  // namespace pagoda::serve
