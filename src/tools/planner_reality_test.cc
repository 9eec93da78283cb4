#include "tools/planner_reality.h"

#include <gtest/gtest.h>

#include "engine/test_models.h"

namespace pagoda::tools {
namespace {

void nobody(double, std::string_view) {}

Plan plan_of(const char* name, PlanRequest request) {
  const auto gguf = weights::Gguf::open(engine::tiny_model(name));
  EXPECT_TRUE(gguf);
  auto plan = make_plan(*planned_model(*gguf), std::move(request));
  EXPECT_TRUE(plan);
  return std::move(*plan);
}

TEST(PlannerReality, LoadedModelsAreAsPlanned) {
  for (const auto& [name, format] :
       {std::pair{"tiny-llama", "q8"}, std::pair{"tiny-qwen2", "auto"}, std::pair{"tiny-gemma3", "auto"},
        std::pair{"tiny-gemma3", "bf16"}, std::pair{"tiny-gemma3", "q4"}}) {
    engine::EngineConfig config = engine::tiny_config(engine::tiny_model(name));
    config.kv_format = format;
    const Plan plan = plan_of(name, {.context_tokens = 384, .memory_bytes = uint64_t{1} << 30, .format = format});
    const auto figures = verify_plan(config, plan, nobody);
    ASSERT_TRUE(figures) << figures.error().to_string();
    ASSERT_GE(figures->size(), 4u);
    for (const VerifiedFigure& f : *figures) {
      // The test program holds other tests' memory, and a sanitizer's.
      if (f.what == "resident memory") continue;
      EXPECT_TRUE(f.agrees()) << name << " " << format << ": " << f.what << " planned " << f.planned_bytes
                              << " measured " << f.measured_bytes;
    }
  }
}

TEST(PlannerReality, AWrongPlanIsFound) {
  Plan plan = plan_of("tiny-llama", {.context_tokens = 128, .memory_bytes = uint64_t{1} << 30});
  plan.weight_bytes += 1;
  plan.request.format = "bf16";  // and the engine stores q8
  const auto figures = verify_plan(engine::tiny_config(engine::tiny_model("tiny-llama")), plan, nobody);
  ASSERT_TRUE(figures);
  int wrong = 0;
  for (const VerifiedFigure& f : *figures) wrong += f.what != "resident memory" && !f.agrees();
  EXPECT_EQ(wrong, 3);  // weights, KV of the sequence, KV per token
}

TEST(PlannerReality, GenerationIsTheSameWithoutACache) {
  engine::EngineConfig config = engine::tiny_config(engine::tiny_model("tiny-llama"));
  config.context_tokens = 64;
  const auto measured = measure_generation(config, nobody);
  ASSERT_TRUE(measured) << measured.error().to_string();
  ASSERT_FALSE(measured->empty());
  for (const MeasuredGeneration& m : *measured) {
    EXPECT_TRUE(m.same_tokens) << m.n_tokens;
    EXPECT_GT(m.cached_s, 0);
    EXPECT_GT(m.uncached_s, 0);
  }
}

TEST(PlannerReality, RatesAreMeasured) {
  const auto rates = measure_rates(kernels::best_isa(), 1, 1 << 20);
  ASSERT_TRUE(rates);
  EXPECT_GT(rates->read_bytes_per_s, 1e8);
  for (const double rate : rates->dots) EXPECT_GT(rate, 1e7);
}

}  // namespace
}  // namespace pagoda::tools
