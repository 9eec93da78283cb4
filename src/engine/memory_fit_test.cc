#include "engine/memory_fit.h"

#include <gtest/gtest.h>

#include "engine/memory_plan.h"
#include "models/kv_plan.h"

namespace pagoda::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kFree = uint64_t{8} << 30;

// As SmolLM2-135M: 12 KB of KV a token in int8, twice that in bf16.
FitModel small_model() {
  FitModel model;
  model.config.n_layers = 30;
  model.config.n_heads = 9;
  model.config.n_kv_heads = 3;
  model.config.head_dim = 64;
  model.config.embed_dim = 576;
  model.config.ffn_dim = 1536;
  model.config.vocab_size = 49152;
  model.config.context_length = 8192;
  model.config.rope.dim = 64;
  model.weight_bytes = 92 * kMiB;
  model.tokenizer_bytes = 8 * kMiB;
  const weights::ModelConfig config = model.config;
  model.groups_of = [config](std::string_view format) -> Result<std::vector<models::AttentionGroup>> {
    TRY_ASSIGN(const auto formats, models::layer_formats(format, std::vector<uint8_t>(30)));
    return models::group_layers(config, formats);
  };
  model.formats = {"auto"};
  return model;
}

EngineConfig two_threads() {
  EngineConfig config;
  config.n_threads = 2;
  return config;
}

MemoryFit fit_in(uint64_t bytes, const FitModel& model, EngineConfig config = two_threads()) {
  config.memory_bytes = bytes;
  return *fit_memory(model, config, memory_limit(config), kFree);
}

uint64_t total_bytes(const MemoryFit& fit) { return fit.resident_bytes() + fit.burst_bytes; }

TEST(MemoryFitTest, WithoutALimitNothingIsCut) {
  const FitModel model = small_model();
  const EngineConfig config = two_threads();
  const MemoryFit fit = *fit_memory(model, config, std::nullopt, kFree);
  EXPECT_TRUE(fit.is_enough);
  EXPECT_EQ(fit.context_tokens, 8192);
  EXPECT_EQ(fit.schedule.step_tokens, 256);
  EXPECT_EQ(fit.kv_bytes, auto_budget_bytes(fit.context_bytes, kFree));
  EXPECT_LE(fit.overhead_bytes + fit.burst_bytes, most_overhead_bytes(model.config) + fit.kv_bytes / 200);
}

// Its activations alone are above the most overhead of a small model: that is no reason to compute three sequences at once.
TEST(MemoryFitTest, AWideModelStillComputesManySequencesAtOnce) {
  FitModel model = small_model();
  model.config.embed_dim = 4096;
  model.config.ffn_dim = 11008;
  model.config.n_heads = 32;
  model.config.head_dim = 128;
  const MemoryFit fit = *fit_memory(model, two_threads(), std::nullopt, kFree);
  EXPECT_GT(fit.overhead_bytes, most_overhead_bytes(model.config));
  EXPECT_EQ(fit.schedule.max_running, 32);
  EXPECT_EQ(fit_in(8192 * kMiB, model).schedule.max_running, 32);
}

TEST(MemoryFitTest, TheWholeContextOfASmallModelFitsIn256MiB) {
  const MemoryFit fit = fit_in(256 * kMiB, small_model());
  EXPECT_TRUE(fit.is_enough);
  EXPECT_EQ(fit.context_tokens, 8192);
  EXPECT_EQ(fit.schedule.step_tokens, 256);
  EXPECT_GE(fit.kv_bytes, 96 * kMiB);
}

TEST(MemoryFitTest, ACutContextSaysWhatWasAskedForWhatIsServedAndWhy) {
  const FitModel model = small_model();
  EngineConfig config = two_threads();
  EXPECT_EQ(fit_in(200 * kMiB, model).cut(config, 8192, 4000), "") << "nobody asked for more";
  config.context_tokens = 8192;
  MemoryFit fit = *fit_memory(model, config, std::nullopt, kFree);
  EXPECT_EQ(fit.cut(config, 8192, 8192), "");
  config.context_tokens = 100'000;
  EXPECT_EQ(fit.cut(config, 8192, 8192),
            "context of 100000 tokens asked for, serving 8192: the model was trained for 8192");
  config.kv_memory_bytes = 10 * kMiB;
  fit = *fit_memory(model, config, std::nullopt, kFree);
  EXPECT_EQ(fit.cut(config, 8192, 704),
            "context of 100000 tokens asked for, serving 704: the model was trained for 8192, and --kv-memory of "
            "10.0 MiB holds 704");
  config.kv_memory_bytes.reset();
  config.context_tokens = 8000;
  fit = fit_in(170 * kMiB, model, config);
  ASSERT_LT(fit.context_tokens, 8000);
  EXPECT_EQ(fit.cut(config, 8192, fit.context_tokens),
            fmt::format("context of 8000 tokens asked for, serving {0}: --memory of 170.0 MiB holds {0}",
                        fit.context_tokens));
}

TEST(MemoryFitTest, NoLimitIsEverPassedAndMoreMemoryNeverGivesLess) {
  FitModel model = small_model();
  model.formats = {"bf16", "q8"};
  int context_tokens = 0;
  for (uint64_t bytes = 120 * kMiB; bytes < 700 * kMiB; bytes += 3 * kMiB + 12345) {
    const MemoryFit fit = fit_in(bytes, model);
    if (!fit.is_enough) {
      EXPECT_GT(fit.least_limit_bytes, bytes);
      EXPECT_EQ(context_tokens, 0);
      continue;
    }
    EXPECT_LE(total_bytes(fit), bytes);
    EXPECT_LE(fit.least_limit_bytes, bytes);
    EXPECT_GE(fit.context_tokens, context_tokens);
    context_tokens = fit.context_tokens;
    const auto groups = *model.groups_of(fit.kv_format);
    EXPECT_LE(least_budget_bytes(groups, context_tokens, fit.schedule.max_prefill_rows(), fit.extent_bytes),
              fit.kv_bytes);
    EXPECT_GT(fit.schedule.max_logits, fit.schedule.max_running);
  }
  EXPECT_EQ(context_tokens, 8192);
}

TEST(MemoryFitTest, StepsShrinkFirstThenTheFormatAndTheContextLast) {
  FitModel model = small_model();
  model.formats = {"bf16", "q8"};
  const MemoryFit first = fit_in(1024 * kMiB, model);
  EXPECT_EQ(first.kv_format, "bf16");
  EXPECT_EQ(first.schedule.max_prefill_rows(), 512);
  const MemoryFit smaller = fit_in(first.whole_limit_bytes - 1, model);
  EXPECT_EQ(smaller.kv_format, "bf16");
  EXPECT_EQ(smaller.schedule.max_prefill_rows(), 256);
  EXPECT_EQ(smaller.context_tokens, 8192);
  const MemoryFit coarser = fit_in(246 * kMiB, model);
  EXPECT_EQ(coarser.kv_format, "q8");
  EXPECT_EQ(coarser.context_tokens, 8192);
  const MemoryFit shorter = fit_in(170 * kMiB, model);
  EXPECT_EQ(shorter.kv_format, "q8");
  EXPECT_EQ(shorter.schedule.max_prefill_rows(), 32);
  EXPECT_LT(shorter.context_tokens, 8192);
  EXPECT_NE(shorter.choice().find(fmt::format("context {} of 8192 tokens, KV as q8", shorter.context_tokens)),
            std::string::npos);
}

TEST(MemoryFitTest, TheSmallestLimitIsTheSmallest) {
  const FitModel model = small_model();
  const MemoryFit fit = fit_in(100 * kMiB, model);
  ASSERT_FALSE(fit.is_enough);
  EXPECT_EQ(fit.error().where, "--memory");
  EXPECT_NE(fit.error().message.find(std::to_string(fit.least_limit_bytes)), std::string::npos);
  EXPECT_NE(fit.error().message.find(std::to_string(fit.whole_limit_bytes)), std::string::npos);
  EXPECT_TRUE(fit_in(fit.least_limit_bytes, model).is_enough);
  EXPECT_FALSE(fit_in(fit.least_limit_bytes - 1, model).is_enough);
  EXPECT_EQ(fit_in(fit.whole_limit_bytes, model).context_tokens, 8192);
}

TEST(MemoryFitTest, ANamedKvMemoryMustFitBesideTheRest) {
  const FitModel model = small_model();
  EngineConfig config = two_threads();
  config.kv_memory_bytes = 40 * kMiB;
  const MemoryFit fit = fit_in(256 * kMiB, model, config);
  EXPECT_TRUE(fit.is_enough);
  EXPECT_EQ(fit.kv_bytes, 40 * kMiB);
  EXPECT_LT(fit.context_tokens, 8192);
  config.kv_memory_bytes = 400 * kMiB;
  EXPECT_FALSE(fit_in(256 * kMiB, model, config).is_enough);
}

TEST(MemoryFitTest, ACgroupBoundsWhatNobodyNamed) {
  const FitModel model = small_model();
  const MemoryLimit limit{200 * kMiB, MemoryLimit::Source::kCgroup};
  const MemoryFit fit = *fit_memory(model, two_threads(), limit, kFree);
  EXPECT_TRUE(fit.is_enough);
  EXPECT_LE(total_bytes(fit), limit.bytes);
  const MemoryFit wide = *fit_memory(model, two_threads(), MemoryLimit{uint64_t{64} << 30, limit.source}, kFree);
  EXPECT_EQ(wide.kv_bytes, auto_budget_bytes(wide.context_bytes, kFree));
}

TEST(MemoryFitTest, TiersTakeTheirPart) {
  const FitModel model = small_model();
  EngineConfig config = two_threads();
  config.tiers.disk_dir = "somewhere";
  const MemoryFit with = fit_in(256 * kMiB, model, config), without = fit_in(256 * kMiB, model);
  EXPECT_EQ(with.staging_bytes, 8 * kMiB);
  EXPECT_GT(with.most_disk_bytes, uint64_t{1} << 30);
  EXPECT_GT(with.overhead_bytes, without.overhead_bytes + 16 * kMiB);
  EXPECT_LE(total_bytes(with), 256 * kMiB);
  const auto n_running = [&](const EngineConfig& c) {
    return fit_memory(model, c, std::nullopt, kFree)->schedule.max_running;
  };
  EXPECT_EQ(n_running(config), n_running(two_threads()));  // and no sequences
  config.prefix_cache = PrefixCache::kOff;
  EXPECT_EQ(fit_in(256 * kMiB, model, config).staging_bytes, 0u);
}

}  // namespace
}  // namespace pagoda::engine
