#include "sched/step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sched/test_machine.h"

namespace pagoda::sched {
namespace {

StepLoad draw(Machine& machine, int most_decodes, int most_prefill) {
  StepLoad load;
  const auto below = [&](int n) { return static_cast<int>(machine.random() % static_cast<unsigned>(n)); };
  for (int i = below(most_decodes + 1); i > 0; --i) load.add_decode(below(8000));
  if (most_prefill > 0) load.add_prefill(below(7000), 1 + below(most_prefill));
  return load;
}

double error_of(const StepTimeModel& model, const Machine& machine, const StepLoad& load) {
  return std::abs(model.predict_us(load) / machine.true_us(load) - 1);
}

TEST(StepTimeModelTest, LearnsAMixOfSteps) {
  Machine machine;
  StepTimeModel model;
  EXPECT_FALSE(model.knows_prefills());
  for (int i = 0; i < 200; ++i) {
    const StepLoad load = draw(machine, 16, i % 3 == 0 ? 256 : 0);
    model.learn(load, machine.run(load));
  }
  EXPECT_TRUE(model.knows_prefills());
  for (int i = 0; i < 100; ++i) EXPECT_LT(error_of(model, machine, draw(machine, 16, 256)), 0.25);
}

TEST(StepTimeModelTest, ManyDecodesDoNotWashOutPrefills) {
  Machine machine;
  StepTimeModel model;
  for (int i = 0; i < 100; ++i) {
    const StepLoad load = draw(machine, 8, 256);
    model.learn(load, machine.run(load));
  }
  for (int i = 0; i < 20'000; ++i) {
    StepLoad load;
    load.add_decode(100 + i % 500);
    model.learn(load, machine.run(load));
  }
  for (int i = 0; i < 100; ++i) EXPECT_LT(error_of(model, machine, draw(machine, 8, 256)), 0.35);
}

TEST(StepTimeModelTest, FollowsAMachineThatGetsSlower) {
  Machine machine;
  StepTimeModel model;
  const auto serve = [&](int n_steps) {
    for (int i = 0; i < n_steps; ++i) {
      const StepLoad load = draw(machine, 16, i % 2 == 0 ? 128 : 0);
      model.learn(load, machine.run(load));
    }
  };
  serve(200);
  machine.slow_down(3);
  serve(300);
  for (int i = 0; i < 50; ++i) EXPECT_LT(error_of(model, machine, draw(machine, 16, 128)), 0.3);
}

TEST(StepTimeModelTest, OneStepThatWasHeldUpChangesLittle) {
  Machine machine;
  StepTimeModel model;
  for (int i = 0; i < 200; ++i) {
    const StepLoad load = draw(machine, 16, i % 2 == 0 ? 128 : 0);
    model.learn(load, machine.run(load));
  }
  const StepLoad load = draw(machine, 4, 128);
  const double before_us = model.predict_us(load);
  model.learn(load, 30'000'000);
  EXPECT_LT(model.predict_us(load), 1.5 * before_us);
}

TEST(StepTimeModelTest, RowsWithinATimeTakeThatTime) {
  Machine machine;
  StepTimeModel model;
  for (int i = 0; i < 300; ++i) {
    const StepLoad load = draw(machine, 16, 256);
    model.learn(load, machine.run(load));
  }
  for (const int64_t context : {0, 100, 7000}) {
    const int32_t n = model.prefill_rows_within(50'000, context);
    EXPECT_LE(model.prefill_us(n, context), 50'000);
    EXPECT_GT(model.prefill_us(n + 1, context), 50'000 * 0.99);
  }
  EXPECT_EQ(model.prefill_rows_within(0, 0), 0);
  EXPECT_EQ(model.prefill_rows_within(-5, 0), 0);
}

TEST(StepTimeModelTest, NonsenseIsHarmless) {
  StepTimeModel model;
  model.learn({}, 0);
  model.learn({}, -7);
  EXPECT_EQ(model.predict_us({}), 0);
  model.learn({}, 1);
  model.learn({.decode_rows = 1, .decode_context = INT64_MAX / 2}, INT64_MAX / 2);
  EXPECT_TRUE(std::isfinite(model.predict_us({.decode_rows = 3})));
  EXPECT_GE(model.prefill_rows_within(1000, 0), 0);
}

}  // namespace
}  // namespace pagoda::sched
