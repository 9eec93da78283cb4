#include "tools/idle_probe.h"

#include <gtest/gtest.h>

#include "base/test_folder.h"
#include "engine/evaluate.h"
#include "engine/kv_probe.h"
#include "engine/test_models.h"
#include "tools/kv_probing.h"

namespace pagoda::tools {
namespace {

class IdleProbeTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.model_path = engine::tiny_model("tiny-qwen2");
    config_.probes.folder = folder_.path() / "probes";
    config_.n_threads = 2;
    const auto gguf = weights::Gguf::open(config_.model_path);
    ASSERT_TRUE(gguf);
    key_ = *engine::probe_key(*gguf, config_.arithmetic);
  }
  std::unique_ptr<engine::StepRunner> load() const {
    auto runner = engine::StepRunner::create(config_, clock_);
    EXPECT_TRUE(runner) << runner.error().to_string();
    return std::move(*runner);
  }
  std::optional<engine::KvProbe> stored() const { return engine::read_probe(config_.probes.folder, key_); }

  const TestFolder folder_;
  const SteadyClock clock_;
  engine::EngineConfig config_ = engine::tiny_config({});
  Hash128 key_;
};

TEST_F(IdleProbeTest, MeasuresInPiecesWhatInspectMeasuresAtOnce) {
  config_.n_threads = 1;  // thousands of tiny steps: two would mostly wait for each other
  const auto runner = load();
  const std::vector<TokenId> tokens = engine::random_tokens(3, 100);
  const auto before = engine::evaluate(*runner, tokens, engine::KvReuse::kOn, 0);
  const auto work = idle_probe(config_)(*runner);
  ASSERT_NE(work, nullptr);
  int n_pieces = 0;
  for (; work->do_piece(); ++n_pieces) {
    if (n_pieces % 500 != 100) continue;  // the engine's own steps come between
    const auto between = engine::evaluate(*runner, tokens, engine::KvReuse::kOn, 0);
    ASSERT_TRUE(before && between);
    EXPECT_EQ(between->logits_hash, before->logits_hash);
  }
  EXPECT_FALSE(work->do_piece());
  EXPECT_GT(n_pieces, 1000);
  const auto probe = stored();
  ASSERT_TRUE(probe);
  auto at_once = probe_formats(config_, std::nullopt, [](double, std::string_view) {});
  ASSERT_TRUE(at_once);
  at_once->unix_s = probe->unix_s;
  EXPECT_EQ(*probe, *at_once);
  EXPECT_EQ(idle_probe(config_)(*runner), nullptr) << "it is stored by now";
}

TEST_F(IdleProbeTest, EndsAtAnyPoint) {
  const auto runner = load();
  for (const int n_pieces : {0, 1, 2, 10, 100}) {
    const auto work = idle_probe(config_)(*runner);
    ASSERT_NE(work, nullptr);
    for (int i = 0; i < n_pieces; ++i) ASSERT_TRUE(work->do_piece());
  }
  EXPECT_FALSE(stored());
}

TEST_F(IdleProbeTest, IsLeftOutWhereItIsNotWantedOrHasNoMemory) {
  const auto runner = load();
  engine::EngineConfig forced = config_;
  forced.kv_format = "q8";
  EXPECT_EQ(idle_probe(forced)(*runner), nullptr);
  engine::EngineConfig without = config_;
  without.probes.folder.clear();
  EXPECT_EQ(idle_probe(without)(*runner), nullptr);
  config_.kv_memory_bytes.reset();
  config_.memory_bytes = uint64_t{120} << 20;  // all of which K and V get
  EXPECT_EQ(idle_probe(config_)(*load()), nullptr);
}

}  // namespace
}  // namespace pagoda::tools
