#include "engine/kv_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/test_folder.h"
#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

constexpr Hash128 kKey{.low = 7, .high = 0xfedcba9876543210};
const KvDistance kGood{.delta_ppl = 0.0004, .mean_kl = 0.00041, .same_top = 0.992};
const KvDistance kBad{.delta_ppl = 0.02, .mean_kl = 0.0301, .same_top = 0.93};

KvProbe example() {
  return {.table = "k16v8*2,q8*2",
          .verdicts = {{"q8", kBad}, {"k16v8*2,q8*2", kGood}},
          .n_tokens = 4094,
          .unix_s = 1796000000};
}

TEST(KvProbeTest, TheGateIsBeyondTheNoise) {
  EXPECT_TRUE(passes({}));
  EXPECT_TRUE(passes({.delta_ppl = -0.5, .mean_kl = 0.003, .same_top = 0.985}));
  EXPECT_FALSE(passes({.delta_ppl = 0.0031, .mean_kl = 0, .same_top = 1}));
  EXPECT_FALSE(passes({.delta_ppl = 0, .mean_kl = 0.0031, .same_top = 1}));
  EXPECT_FALSE(passes({.delta_ppl = 0, .mean_kl = 0, .same_top = 0.984}));
  EXPECT_FALSE(passes({.delta_ppl = std::nan(""), .mean_kl = 0, .same_top = 1}));
  const KvDistance noise{.delta_ppl = 0.002, .mean_kl = 0.0035, .same_top = 0.95};
  const KvDistance rest = beyond({.delta_ppl = 0.001, .mean_kl = 0.0048, .same_top = 0.945}, noise);
  EXPECT_DOUBLE_EQ(rest.delta_ppl, 0.001);
  EXPECT_NEAR(rest.mean_kl, 0.0013, 1e-12);
  EXPECT_NEAR(rest.same_top, 0.995, 1e-12);
}

TEST(KvProbeTest, WhatIsWrittenIsReadAndNothingElse) {
  const std::string text = probe_text(kKey, example());
  ASSERT_EQ(parse_probe(text, kKey), example());
  EXPECT_FALSE(parse_probe(text, {.low = 8, .high = kKey.high}));
  EXPECT_FALSE(parse_probe(text + "x", kKey));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    EXPECT_FALSE(parse_probe(damaged, kKey)) << i;
    EXPECT_FALSE(parse_probe(text.substr(0, i), kKey)) << i;
  }
}

TEST(KvProbeTest, FilesAreReplacedWholeAndDamagedOnesIgnored) {
  const TestFolder folder;
  const auto below = folder.path() / "not" / "there";
  EXPECT_FALSE(read_probe(below, kKey));
  ASSERT_TRUE(write_probe(below, kKey, {.table = "bf16", .verdicts = {}}));
  ASSERT_TRUE(write_probe(below, kKey, example()));
  EXPECT_EQ(read_probe(below, kKey), example());
  const auto entries = std::filesystem::directory_iterator(below);
  ASSERT_EQ(std::distance(begin(entries), end(entries)), 1);
  const auto path = std::filesystem::directory_iterator(below)->path();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  EXPECT_FALSE(read_probe(below, kKey));
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_FALSE(write_probe(folder.path() / "file", kKey, example()));
}

// The formats that a probe leaves an engine of tiny-qwen2 with.
std::string applied(const KvProbe& probe, const std::string& asked,
                    kernels::Arithmetic arithmetic = kernels::Arithmetic::kInt8) {
  const TestFolder folder;
  EngineConfig config = tiny_config(tiny_model("tiny-qwen2"));
  config.kv_format = asked;
  const auto gguf = weights::Gguf::open(config.model_path);
  const auto key = probe_key(*gguf, kernels::Arithmetic::kInt8);
  EXPECT_TRUE(key);
  EXPECT_TRUE(write_probe(folder.path(), *key, probe));
  config.arithmetic = arithmetic;
  apply_probe({.folder = folder.path(), .shipped = {}}, *gguf, config);
  return config.kv_format;
}

TEST(KvProbeTest, AutoTakesTheTableAndAForcedFormatStays) {
  EXPECT_EQ(applied(example(), "auto"), "k16v8*2,q8*2");
  EXPECT_EQ(applied(example(), "q8"), "q8");  // with a warning
  EXPECT_EQ(applied(example(), "bf16"), "bf16");
}

TEST(KvProbeTest, AutoRefusesWhatFailed) {
  EXPECT_EQ(applied({.table = "q8", .verdicts = {{"q8", kBad}}}, "auto"), "bf16");
  EXPECT_EQ(applied({.table = "q8", .verdicts = {}}, "auto"), "bf16");
}

TEST(KvProbeTest, AProbeOfSomethingElseChangesNothing) {
  EXPECT_EQ(applied(example(), "auto", kernels::Arithmetic::kF32), "auto");
  KvProbe probe = example();
  probe.table = "q8*24";  // of another number of layers
  EXPECT_EQ(applied(probe, "auto"), "auto");
}

// Tables are shipped one after the other, between comments; of the engine of tiny-qwen2 that `applied` makes.
class ShippedProbeTest : public testing::Test {
 protected:
  ShippedProbeTest() : config_(tiny_config(tiny_model("tiny-qwen2"))) { config_.kv_format = "auto"; }
  Hash128 key(kernels::Arithmetic arithmetic) const {
    return *probe_key(*weights::Gguf::open(config_.model_path), arithmetic);
  }
  static KvProbe of(const std::string& table) { return {.table = table, .verdicts = {{table, kGood}}, .n_tokens = 9}; }
  std::string shipped(const Hash128& key, const std::string& table) const {
    return "# what models bear\n## another\n" + probe_text(kKey, example()) + "## this\n" + probe_text(key, of(table)) +
           "## the last\n" + probe_text({.low = 1, .high = 1}, example());
  }
  std::string applied_auto(std::string_view shipped) {
    EngineConfig config = config_;
    const auto gguf = weights::Gguf::open(config.model_path);
    EXPECT_TRUE(gguf);
    apply_probe({.folder = folder_.path(), .shipped = shipped}, *gguf, config);
    return config.kv_format;
  }

  EngineConfig config_;
  TestFolder folder_;
};

TEST_F(ShippedProbeTest, IsWhatAutoTakes) {
  EXPECT_EQ(applied_auto(shipped(key(kernels::Arithmetic::kInt8), "q8*3,k16v8")), "q8*3,k16v8");
  const auto found = find_probe({.folder = folder_.path(), .shipped = shipped(kKey, "q8")}, kKey);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->probe, example()) << "the first of a key";
  EXPECT_EQ(found->origin, KvProbeOrigin::kShipped);
}

TEST_F(ShippedProbeTest, OfAnotherFingerprintOrArithmeticIsNotTaken) {
  EXPECT_EQ(applied_auto(shipped({.low = 3, .high = 4}, "q8*3,k16v8")), "auto");
  EXPECT_EQ(applied_auto(shipped(key(kernels::Arithmetic::kF32), "q8*3,k16v8")), "auto");
  EXPECT_EQ(applied_auto(""), "auto");
}

TEST_F(ShippedProbeTest, DamagedIsNotTaken) {
  const std::string whole = shipped(key(kernels::Arithmetic::kInt8), "q8*3,k16v8");
  std::string damaged = whole;
  damaged.replace(damaged.find("q8*3"), 4, "q8*2");
  EXPECT_EQ(applied_auto(damaged), "auto");
  for (size_t n = whole.find("## this"); n < whole.find("## the last"); ++n) {
    EXPECT_FALSE(find_probe({.folder = {}, .shipped = std::string_view(whole).substr(0, n)}, key(config_.arithmetic)));
  }
}

TEST_F(ShippedProbeTest, YieldsToWhatWasProbedHere) {
  const Hash128 own = key(kernels::Arithmetic::kInt8);
  ASSERT_TRUE(write_probe(folder_.path(), own, of("k16v8*2,q8*2")));
  EXPECT_EQ(applied_auto(shipped(own, "q8*3,k16v8")), "k16v8*2,q8*2");
  EXPECT_EQ(find_probe({.folder = folder_.path(), .shipped = shipped(own, "q8")}, own)->origin,
            KvProbeOrigin::kProbedHere);
}

TEST(KvProbeTest, KeysDifferByModelAndArithmetic) {
  const auto key = [](const char* model, kernels::Arithmetic arithmetic) {
    return *probe_key(*weights::Gguf::open(tiny_model(model)), arithmetic);
  };
  EXPECT_EQ(key("tiny-llama", kernels::Arithmetic::kInt8), key("tiny-llama", kernels::Arithmetic::kInt8));
  EXPECT_NE(key("tiny-llama", kernels::Arithmetic::kInt8), key("tiny-llama", kernels::Arithmetic::kF32));
  EXPECT_NE(key("tiny-llama", kernels::Arithmetic::kInt8), key("tiny-qwen2", kernels::Arithmetic::kInt8));
}

}  // namespace
}  // namespace pagoda::engine
