// Promise 1 against the edited list: a generation that crossed an edit has, bit for bit, the logits and tokens of a fresh request whose
// prompt is that list; among neighbours, with and without cached prefixes, preempted.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/digest.h"
#include "engine/context_policy.h"
#include "engine/sampler.h"
#include "engine/step_runner.h"
#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

constexpr int kContext = 96;
constexpr sched::SeqId kSubject{1'000'000};

// A list, and what was generated behind it.
struct Stretch {
  std::vector<TokenId> list;
  std::vector<uint64_t> logits;  // of each sampling row: hash of the whole row
  std::vector<TokenId> tokens;
};

// Runs a subject, which samples and goes on behind a full context, and greedy neighbours.
class World final : public LogitsReader {
 public:
  explicit World(const EngineConfig& config) {
    auto created = StepRunner::create(config, clock_);
    EXPECT_TRUE(created) << created.error().to_string();
    runner_ = std::move(*created);
    sampler_ = std::make_unique<Sampler>(runner_->kernels());
  }

  // first_draw: the sampler's position of the first token.
  std::vector<Stretch> run(const std::vector<TokenId>& prompt, int n_tokens, uint32_t first_draw = 0) {
    window_ = std::make_unique<ContextWindow>(plan_, static_cast<int>(prompt.size()));
    stretches_ = {{.list = prompt, .logits = {}, .tokens = {}}};
    draw_ = first_draw;
    submit(kSubject, prompt, n_tokens);
    while (runner_->step(*this)) {
      const Status sound = runner_->scheduler().check_integrity();
      EXPECT_TRUE(sound) << sound.error().to_string();
      n_preempted += static_cast<int>(std::ranges::count(runner_->plan().preempted, kSubject));
      if (!wanted_.contains(kSubject)) finish_neighbours();
    }
    EXPECT_EQ(runner_->pool().stats().live_blocks, 0u);
    return std::move(stretches_);
  }
  void submit(sched::SeqId id, const std::vector<TokenId>& prompt, int n_tokens) {
    wanted_[id] = n_tokens;
    sched::SequenceSpec spec;
    spec.id = id;
    spec.model = runner_->model_id();
    spec.prompt = prompt;
    const Status status = runner_->scheduler().submit(std::move(spec));
    EXPECT_TRUE(status) << status.error().to_string();
  }
  StepRunner& runner() { return *runner_; }
  int n_preempted = 0;

 private:
  void finish_neighbours() {
    for (const auto& [id, wanted] : wanted_) runner_->scheduler().cancel(id);
    wanted_.clear();
  }
  models::SampleMode mode_of(sched::SeqId id) override {
    return id == kSubject ? models::SampleMode::kLogits : models::SampleMode::kGreedy;
  }
  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const SampleResult> results) override {
    if (rows.sampling == sched::Sampling::kNone) return {};
    const TokenId token = rows.seq == kSubject ? draw(results.back()) : results.back().greedy;
    if (--wanted_.at(rows.seq) == 0) {
      runner_->scheduler().finish(rows.seq, sched::FinishReason::kLength);
      wanted_.erase(rows.seq);
    } else {
      edit_if_full(rows.seq, token);
    }
    return {.kind = sched::StepOutcome::Kind::kSampled, .token = token};
  }
  TokenId draw(const SampleResult& result) {
    Xxh3Stream hash;
    hash.update(std::as_bytes(result.logits));
    Stretch& stretch = stretches_.back();
    stretch.logits.push_back(hash.digest());
    stretch.tokens.push_back(
        sampler_->sample({result.logits}, {}, {}, {}, {.seed = 7, .choice = 0, .position = draw_++}));
    return stretch.tokens.back();
  }
  void edit_if_full(sched::SeqId id, TokenId token) {
    const std::span<const TokenId> known = runner_->scheduler().find(id)->tokens();
    std::vector<TokenId> list(known.begin(), known.end());
    list.push_back(token);
    if (!window_->is_full(static_cast<int>(list.size()))) return;
    list = window_->edit(list).tokens;
    runner_->scheduler().replace_tokens(id, list);
    if (id == kSubject) stretches_.push_back({.list = std::move(list), .logits = {}, .tokens = {}});
  }

  SteadyClock clock_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Sampler> sampler_;
  const ContextPlan plan_{
      .policy = ContextPolicy::Kind::kSinks, .context_tokens = kContext, .keep_tokens = 4, .cuts = {}};
  std::unique_ptr<ContextWindow> window_;
  std::vector<Stretch> stretches_;
  std::map<sched::SeqId, int> wanted_;
  uint32_t draw_ = 0;
};

struct Case {
  const char* family;
  kernels::Arithmetic arithmetic;
};

class ContextEdit : public ::testing::TestWithParam<Case> {
 protected:
  static EngineConfig config() {
    EngineConfig config = tiny_config(tiny_model(std::string("tiny-") + GetParam().family));
    config.arithmetic = GetParam().arithmetic;
    config.context_tokens = kContext;
    config.chunk_tokens = 48;
    return config;
  }
  // Each stretch is what a fresh request with its list gives, computed without any cached prefix.
  static void expect_as_fresh(const std::vector<Stretch>& stretches, int n_tokens) {
    EngineConfig fresh = config();
    fresh.prefix_cache = PrefixCache::kOff;
    World world(fresh);
    uint32_t n_before = 0;
    for (const Stretch& stretch : stretches) {
      const int n = static_cast<int>(stretch.tokens.size());
      ASSERT_LT(stretch.list.size(), static_cast<size_t>(kContext));
      const std::vector<Stretch> alone = world.run(stretch.list, n, n_before);
      ASSERT_EQ(alone.size(), 1u);
      EXPECT_EQ(alone[0].tokens, stretch.tokens);
      EXPECT_EQ(alone[0].logits, stretch.logits);
      n_before += static_cast<uint32_t>(n);
    }
    EXPECT_EQ(n_before, static_cast<uint32_t>(n_tokens));
  }
};

TEST_P(ContextEdit, IsAFreshRequestWithTheEditedPrompt) {
  for (const PrefixCache cache : {PrefixCache::kOn, PrefixCache::kOff}) {
    EngineConfig edited = config();
    edited.prefix_cache = cache;
    World world(edited);
    for (uint64_t i = 0; i < 3; ++i)
      world.submit(sched::SeqId(i), random_tokens(50 + static_cast<uint32_t>(i), 30), 300);
    const std::vector<Stretch> stretches = world.run(random_tokens(1, 70), 120);
    ASSERT_EQ(stretches.size(), 4u);  // 26 tokens, then half of 92 each time
    expect_as_fresh(stretches, 120);
    // A second time it finds its lists cached, the edited ones too.
    EXPECT_EQ(world.run(random_tokens(1, 70), 120).back().logits, stretches.back().logits);
  }
}

// Elders grow, and are edited too, until their blocks and the subject's are more than there are: it is preempted, again after an edit.
TEST_P(ContextEdit, Preempted) {
  EngineConfig tight = config();
  size_t n_blocks = SIZE_MAX;  // of an extent
  {
    World probe(tight);
    const size_t extent_bytes = probe.runner().pool().extent_bytes();
    const std::vector<models::AttentionGroup>& groups = probe.runner().model().groups();
    for (const models::AttentionGroup& group : groups)
      n_blocks = std::min(n_blocks, extent_bytes / group.layout.block_bytes);
    tight.kv_memory_bytes = groups.size() * extent_bytes;
  }
  World world(tight);
  for (uint32_t i = 0; i < n_blocks / 3 + 2; ++i)
    world.submit(sched::SeqId(i), random_tokens(70 + i, 20), static_cast<int>(120 + 8 * i));
  const std::vector<Stretch> stretches = world.run(random_tokens(2, 60), 150);
  EXPECT_EQ(stretches.size(), 4u);
  expect_as_fresh(stretches, 150);
  EXPECT_GT(world.n_preempted, 0);
}

// equality_test.cc goes through all families in all arithmetics; edits have no more of either, and sanitizers see enough in two.
constexpr Case kCases[] = {
    {"llama", kernels::Arithmetic::kInt8},  {"gemma3", kernels::Arithmetic::kInt8},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    {"qwen2", kernels::Arithmetic::kBf16},  {"qwen3", kernels::Arithmetic::kF32},
    {"gemma3", kernels::Arithmetic::kBf16},
#endif
};
INSTANTIATE_TEST_SUITE_P(Models, ContextEdit, ::testing::ValuesIn(kCases), [](const auto& info) {
  return std::string(info.param.family) + "_" + std::string(to_string(info.param.arithmetic));
});

}  // namespace
}  // namespace pagoda::engine
