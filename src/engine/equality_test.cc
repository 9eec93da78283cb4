// Promise 1, in one process: a cache never changes an answer. The same sequence's logits and tokens are the same bits alone, in a batch,
// chunked, preempted, after prefix hits, recomputed without cache, on any number of threads and on every instruction set of this machine.
// What a new feature may not change either is one more TEST_P here.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "base/digest.h"
#include "base/test_folder.h"
#include "engine/sampler.h"
#include "engine/step_runner.h"
#include "engine/test_models.h"
#include "kv/test_redis_server.h"

namespace pagoda::engine {
namespace {

constexpr int kPromptTokens = 280;  // more than a span of 8 blocks, and more than gemma3's window of 64
constexpr int kGeneratedTokens = 12;
constexpr int kLongGeneration = 90;  // what the reference knows; enough to outlive a preemption
constexpr sched::SeqId kSubject{1'000'000};

struct Case {
  const char* family;
  kernels::Arithmetic arithmetic;
  const char* kv_format;
};
std::string name_of(const Case& c) {
  return std::string(c.family) + "_" + std::string(to_string(c.arithmetic)) + "_" + c.kv_format;
}

// What was seen of the subject.
struct Trace {
  std::map<int, uint64_t> logits;  // by position: hash of its whole row
  std::vector<TokenId> tokens;     // generated
  int preemptions = 0;
};

uint64_t hash_of(std::span<const float> logits) {
  Xxh3Stream hash;
  hash.update(std::as_bytes(logits));
  return hash.digest();
}

// Runs the subject and its neighbours, which are greedy and never looked at.
class World final : public LogitsReader {
 public:
  explicit World(const EngineConfig& config) {
    auto created = StepRunner::create(config, clock_);
    if (!created) {
      ADD_FAILURE() << created.error().to_string();
      return;
    }
    runner_ = std::move(*created);
    sampler_ = std::make_unique<Sampler>(runner_->kernels());
  }
  bool is_ready() const { return runner_ != nullptr; }

  void submit_subject(std::vector<TokenId> prompt, int n_generate,
                      sched::PromptLogits logits = sched::PromptLogits::kAll) {
    wanted_[kSubject] = n_generate;
    submit(kSubject, std::move(prompt), logits);
  }
  // Generates until n_generate tokens are there, or until finish_neighbours().
  void submit_neighbour(std::vector<TokenId> prompt, int n_generate) {
    const sched::SeqId id(next_neighbour_++);
    wanted_[id] = n_generate;
    submit(id, std::move(prompt), sched::PromptLogits::kNone);
  }
  void finish_neighbours() {
    for (const auto& [id, wanted] : std::map(wanted_)) {
      if (id == kSubject) continue;
      runner_->scheduler().cancel(id);
      wanted_.erase(id);
    }
  }

  // What is submitted from now on is a turn of the session; it ends with run().
  void enter_session(const kv::SessionKey& key) { session_ = runner_->sessions()->enter(key); }

  bool subject_runs() const { return wanted_.contains(kSubject); }
  bool step() {
    const bool stepped = runner_->step(*this);
    const auto& preempted = runner_->plan().preempted;
    trace_.preemptions += static_cast<int>(std::ranges::count(preempted, kSubject));
    for (const Status& status : {runner_->scheduler().check_integrity(), runner_->pool().check_integrity()}) {
      EXPECT_TRUE(status) << status.error().to_string();
    }
    return stepped;
  }
  // Whether it is worth looking again: somebody waits for a tier.
  bool wait_for_tiers() {
    if (runner_->tiers() == nullptr || runner_->scheduler().idle()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return true;
  }
  // All that is sealed is in the tiers.
  void finish_storing() {
    while (runner_->is_storing()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  // Steps until all have ended, and checks that nothing is left.
  Trace run() {
    while (step() || wait_for_tiers()) {
    }
    EXPECT_TRUE(runner_->scheduler().idle());
    if (session_ != kv::SessionId()) runner_->sessions()->leave(std::exchange(session_, {}));
    const kv::PoolStats stats = runner_->pool().stats();
    EXPECT_EQ(stats.live_blocks, 0u);
    EXPECT_EQ(stats.live_bytes, 0u);
    EXPECT_EQ(stats.live_bytes + stats.cached_bytes + stats.free_bytes + stats.overhead_bytes, stats.budget_bytes);
    return trace_;
  }

  // The next subject is another one.
  void forget_trace() { trace_ = {}; }
  uint64_t reused_tokens() const { return runner_->scheduler().stats().reused_tokens; }
  StepRunner& runner() { return *runner_; }
  const Trace& trace() const { return trace_; }

 private:
  void submit(sched::SeqId id, std::vector<TokenId> prompt, sched::PromptLogits logits) {
    sched::SequenceSpec spec;
    spec.id = id;
    spec.model = runner_->model_id();
    spec.prompt = std::move(prompt);
    spec.prompt_logits = logits;
    spec.session = session_;
    const Status status = runner_->scheduler().submit(std::move(spec));
    EXPECT_TRUE(status) << status.error().to_string();
  }

  models::SampleMode mode_of(sched::SeqId id) override {
    return id == kSubject ? models::SampleMode::kLogits : models::SampleMode::kGreedy;
  }
  sched::StepOutcome read(const sched::SeqRows& rows, std::span<const SampleResult> results) override {
    if (rows.seq == kSubject) look_at(rows, results);
    if (rows.sampling == sched::Sampling::kNone) return {};
    const TokenId token = rows.seq == kSubject ? draw(results.back().logits) : results.back().greedy;
    if (--wanted_.at(rows.seq) == 0) {
      runner_->scheduler().finish(rows.seq, sched::FinishReason::kLength);
      wanted_.erase(rows.seq);
    }
    return {.kind = sched::StepOutcome::Kind::kSampled, .token = token};
  }
  void look_at(const sched::SeqRows& rows, std::span<const SampleResult> results) {
    int position = rows.first_position + rows.n_tokens - rows.n_logits;
    for (const SampleResult& result : results) {
      EXPECT_TRUE(trace_.logits.emplace(position, hash_of(result.logits)).second)
          << "position " << position << " came twice";
      ++position;
    }
  }
  TokenId draw(std::span<const float> logits) {
    const DrawKey key{.seed = 7, .choice = 0, .position = static_cast<uint32_t>(trace_.tokens.size())};
    trace_.tokens.push_back(sampler_->sample({logits}, {}, {}, {}, key));
    return trace_.tokens.back();
  }

  SteadyClock clock_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<Sampler> sampler_;
  std::map<sched::SeqId, int> wanted_;  // tokens still to generate
  uint64_t next_neighbour_ = 1;
  kv::SessionId session_;
  Trace trace_;
};

class Equality : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    for (const char* family : {"llama", "qwen2", "qwen3", "gemma3"}) tiny_model(std::string("tiny-") + family);
  }

  static EngineConfig config() {
    const Case& c = GetParam();
    static std::map<std::string, std::filesystem::path> paths;
    std::filesystem::path& path = paths[c.family];
    if (path.empty()) path = tiny_model(std::string("tiny-") + c.family);
    EngineConfig config = tiny_config(path);
    config.arithmetic = c.arithmetic;
    config.kv_format = c.kv_format;
    return config;
  }
  static std::vector<TokenId> prompt() { return random_tokens(42, kPromptTokens); }

  // The reference: alone, best instruction set, one thread. Computed once per case.
  static const Trace& alone() {
    static std::map<std::string, Trace> traces;
    const auto [at, is_new] = traces.try_emplace(name_of(GetParam()));
    if (is_new) at->second = run_alone(config(), kPromptTokens, kLongGeneration);
    return at->second;
  }
  static Trace run_alone(const EngineConfig& config, int n_prompt, int n_generate) {
    World world(config);
    if (!world.is_ready()) return {};
    std::vector<TokenId> tokens = prompt();
    tokens.resize(static_cast<size_t>(n_prompt));
    world.submit_subject(std::move(tokens), n_generate);
    return world.run();
  }

  // Every row that `other` saw is the reference's, and it saw those of [first, last).
  static void expect_same_logits(const Trace& other, int first, int last) {
    for (int position = first; position < last; ++position) EXPECT_TRUE(other.logits.contains(position)) << position;
    for (const auto& [position, hash] : other.logits) {
      if (position >= last) break;
      ASSERT_EQ(hash, alone().logits.at(position)) << "the first row that differs is position " << position;
    }
  }
  static void expect_same(const Trace& other, int n_generated, sched::PromptLogits logits = sched::PromptLogits::kAll) {
    ASSERT_EQ(alone().tokens.size(), static_cast<size_t>(kLongGeneration));
    ASSERT_EQ(other.tokens.size(), static_cast<size_t>(n_generated));
    EXPECT_TRUE(std::equal(other.tokens.begin(), other.tokens.end(), alone().tokens.begin()));
    expect_same_logits(other, logits == sched::PromptLogits::kAll ? 0 : kPromptTokens - 1,
                       kPromptTokens - 1 + n_generated);
  }
  // The prompt and n_more tokens of its answer are a next turn: it reuses the whole blocks of the prompt, and its row is the reference's.
  static void expect_same_turn(World& world, int n_more) {
    std::vector<TokenId> turn = prompt();
    turn.insert(turn.end(), alone().tokens.begin(), alone().tokens.begin() + n_more);
    world.forget_trace();
    const uint64_t before = world.reused_tokens();
    world.submit_subject(turn, 1, sched::PromptLogits::kNone);
    expect_same_logits(world.run(), kPromptTokens - 1 + n_more, kPromptTokens + n_more);
    EXPECT_GE(world.reused_tokens() - before, kPromptTokens / 32 * 32u);
  }
};

TEST_P(Equality, AmongSixteenOthers) {
  for (const sched::PromptLogits logits : {sched::PromptLogits::kAll, sched::PromptLogits::kNone}) {
    EngineConfig bounded = config();
    if (logits == sched::PromptLogits::kNone) bounded.target_itl_us = 2000;  // chunks follow the clock
    World world(bounded);
    ASSERT_TRUE(world.is_ready());
    // Some are there before it, some come while it prefills and decodes, some leave while it runs.
    for (int i = 0; i < 16; ++i) {
      if (i == 7) world.submit_subject(prompt(), kGeneratedTokens, logits);
      world.submit_neighbour(random_tokens(static_cast<uint32_t>(100 + i), 1 + (i * 37) % 171), 1 + (i * 5) % 17);
      if (i % 2 == 1) world.step();
    }
    expect_same(world.run(), kGeneratedTokens, logits);
  }
}

TEST_P(Equality, InChunks) {
  for (const int chunk : {1, 7, 32, 256}) {
    SCOPED_TRACE(chunk);
    EngineConfig chunked = config();
    chunked.chunk_tokens = chunk;
    expect_same(run_alone(chunked, kPromptTokens, kGeneratedTokens), kGeneratedTokens);
  }
}

TEST_P(Equality, WithoutCache) {
  EngineConfig off = config();
  off.kv_reuse = KvReuse::kOff;
  expect_same(run_alone(off, kPromptTokens, kGeneratedTokens), kGeneratedTokens);
}

TEST_P(Equality, OnThreads) {
  EngineConfig threaded = config();
  threaded.n_threads = 2;
  expect_same(run_alone(threaded, kPromptTokens, kGeneratedTokens), kGeneratedTokens);
  threaded.n_threads = 3;  // more than some machines have, so a beginning only
  expect_same_logits(run_alone(threaded, 96, 1), 0, 96);
}

// The definition is slow, so it computes a beginning: a row's logits depend on nothing behind it.
TEST_P(Equality, OnEveryIsa) {
  for (const kernels::Isa isa : kernels::supported_isas()) {
    if (isa == kernels::best_isa()) continue;
    SCOPED_TRACE(to_string(isa));
    EngineConfig forced = config();
    forced.isa = isa;
    forced.n_threads = 2;
    if (isa == kernels::Isa::kRef) {
      const int n_prompt = std::string_view(GetParam().family) == "gemma3" ? 70 : 34;  // past the window, past a block
      expect_same_logits(run_alone(forced, n_prompt, 1), 0, n_prompt);
    } else {
      expect_same(run_alone(forced, kPromptTokens, kGeneratedTokens), kGeneratedTokens);
    }
  }
}

// With a disk tier that knows the model by now.
EngineConfig with_disk(EngineConfig config, const TestFolder& folder) {
  config.tiers.disk_dir = folder.path();
  config.tiers.disk_bytes = 64 << 20;
  return config;
}
void wait_for_identity(World& world) {
  KvTiers& tiers = *world.runner().tiers();
  for (int i = 0; i < 50'000 && !tiers.tiering().is_ready(world.runner().model_id()); ++i) {
    tiers.poll();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  ASSERT_TRUE(tiers.tiering().is_ready(world.runner().model_id()));
}

// Elders start with one block each and grow to three: together with the subject's that is more than there are, so the last in line
// loses its own, and computes everything again once the elders are gone.
Trace run_preempted(EngineConfig tight, sched::PromptLogits logits) {
  tight.chunk_tokens = 64;
  const int needed = kPromptTokens / kv::kBlockTokens + 2;
  int n_elders = 0;
  {
    World probe(tight);
    if (!probe.is_ready()) return {};
    size_t fewest = SIZE_MAX, most_bytes = 0;  // blocks of one extent
    const size_t extent_bytes = probe.runner().pool().extent_bytes();
    for (const models::AttentionGroup& group : probe.runner().model().groups()) {
      most_bytes = std::max(most_bytes, group.layout.block_bytes);
      fewest = extent_bytes / most_bytes;
    }
    const size_t n_groups = probe.runner().model().groups().size();
    const size_t n_extents = (static_cast<size_t>(3 * needed) + fewest - 1) / fewest;
    tight.kv_memory_bytes = (n_extents + n_groups - 1) * extent_bytes;
    n_elders = static_cast<int>((n_extents * fewest + 2) / 3);
  }
  World world(tight);
  if (!world.is_ready()) return {};
  if (tight.tiers.disk_dir != std::filesystem::path()) wait_for_identity(world);
  for (int i = 0; i < n_elders; ++i) world.submit_neighbour(random_tokens(static_cast<uint32_t>(500 + i), 4), 1000);
  world.submit_subject(random_tokens(42, kPromptTokens), kLongGeneration, logits);
  while (world.subject_runs() && world.trace().preemptions == 0 && (world.step() || world.wait_for_tiers())) {
  }
  const size_t n_before = world.trace().tokens.size();
  world.finish_neighbours();
  if (KvTiers* tiers = world.runner().tiers()) tiers->tiering().set_compute_cost(world.runner().model_id(), 1e6);
  const Trace trace = world.run();
  EXPECT_GT(trace.preemptions, 0) << "it was to be preempted";
  EXPECT_GT(n_before, 0u);
  EXPECT_LT(n_before, static_cast<size_t>(kLongGeneration));
  return trace;
}

TEST_P(Equality, Preempted) { expect_same(run_preempted(config(), sched::PromptLogits::kAll), kLongGeneration); }

// What it lost when it was preempted it reads again.
TEST_P(Equality, PreemptedAndSpilled) {
  const TestFolder folder;
  const Trace trace = run_preempted(with_disk(config(), folder), sched::PromptLogits::kNone);
  expect_same(trace, kLongGeneration, sched::PromptLogits::kNone);
}

// The prompt's first n tokens, then others.
std::vector<TokenId> branch_of(std::vector<TokenId> prompt, int n, int n_others, uint32_t seed) {
  prompt.resize(static_cast<size_t>(n));
  const std::vector<TokenId> others = random_tokens(seed, n_others);
  prompt.insert(prompt.end(), others.begin(), others.end());
  return prompt;
}

// Blocks that are kept, moved and found again are bytes, whatever the arithmetic makes of them.
class EqualityOfKept : public Equality {};

// At a block's boundary, inside a block (copied), and all but the last token of a prompt. Windows are there at replay points only.
TEST_P(EqualityOfKept, AfterAPrefixHit) {
  const bool has_windows = std::string_view(GetParam().family) == "gemma3";
  for (const int n_common : {32, 160, 173, 279, 280}) {
    SCOPED_TRACE(n_common);
    World world(config());
    ASSERT_TRUE(world.is_ready());
    world.submit_neighbour(branch_of(prompt(), n_common, has_windows ? 20 : 40, 7), 30);
    world.run();
    world.submit_subject(prompt(), kGeneratedTokens, sched::PromptLogits::kNone);
    expect_same(world.run(), kGeneratedTokens, sched::PromptLogits::kNone);
    EXPECT_EQ(world.reused_tokens(), static_cast<uint64_t>(std::min(n_common, kPromptTokens - 1)));
  }
}

// Blocks that decoding filled, a row at a time, serve a prefill; and a fork leaves the original as it was.
TEST_P(EqualityOfKept, AfterATurn) {
  World world(config());
  ASSERT_TRUE(world.is_ready());
  world.submit_subject(prompt(), kLongGeneration, sched::PromptLogits::kNone);
  expect_same(world.run(), kLongGeneration, sched::PromptLogits::kNone);
  for (const int n_more : {80, 47}) {
    expect_same_turn(world, n_more);
  }
}

TEST_P(EqualityOfKept, SharedInFlight) {
  for (const int chunk : {0, 50}) {
    EngineConfig chunked = config();
    chunked.chunk_tokens = chunk;
    World world(chunked);
    ASSERT_TRUE(world.is_ready());
    for (int i = 0; i < 6; ++i) {
      if (i == 3) world.submit_subject(prompt(), kGeneratedTokens, sched::PromptLogits::kNone);
      world.submit_neighbour(branch_of(prompt(), 280 - 25 * i, 20, static_cast<uint32_t>(i)), 20);
      if (i == 1) world.step();
    }
    expect_same(world.run(), kGeneratedTokens, sched::PromptLogits::kNone);
    EXPECT_GT(world.reused_tokens(), 500u);
  }
}

// The prompt is cached, evicted, its memory used by others; computed again and found again.
TEST_P(EqualityOfKept, EvictedAndRefilled) {
  World world(config());
  ASSERT_TRUE(world.is_ready());
  for (int round = 0; round < 4; ++round) {
    if (round == 2) {
      world.runner().prefixes()->clear();
      for (uint32_t i = 0; i < 2; ++i) world.submit_neighbour(random_tokens(900 + i, 300), 10);
      world.run();
    }
    const uint64_t before = world.reused_tokens();
    world.forget_trace();
    world.submit_subject(prompt(), kGeneratedTokens, sched::PromptLogits::kNone);
    expect_same(world.run(), kGeneratedTokens, sched::PromptLogits::kNone);
    EXPECT_EQ(world.reused_tokens() > before, round % 2 == 1);
  }
}

// Computed, written to disk, forgotten in RAM, and read again: by the same process, and by the one after it.
TEST_P(EqualityOfKept, RestoredFromDisk) {
  const TestFolder folder;
  for (int start = 0; start < 2; ++start) {
    SCOPED_TRACE(start);
    World world(with_disk(config(), folder));
    ASSERT_TRUE(world.is_ready());
    wait_for_identity(world);
    kv::Tiering& tiering = world.runner().tiers()->tiering();
    for (int round = 0; round < 2; ++round) {
      SCOPED_TRACE(round);
      tiering.set_compute_cost(world.runner().model_id(), 1e6);  // a tiny model is computed sooner than read
      const uint64_t before = tiering.stats().restored_tokens[0], reused_before = world.reused_tokens();
      world.forget_trace();
      world.submit_subject(prompt(), kGeneratedTokens, sched::PromptLogits::kNone);
      expect_same(world.run(), kGeneratedTokens, sched::PromptLogits::kNone);
      const uint64_t expected = start + round == 0 ? 0 : kPromptTokens / 32 * 32;
      EXPECT_EQ(tiering.stats().restored_tokens[0] - before, expected);
      EXPECT_EQ(world.reused_tokens() - reused_before, expected);
      world.finish_storing();
      world.runner().prefixes()->clear();
    }
    EXPECT_EQ(tiering.stats().loads_cut, 0u);
    EXPECT_EQ(tiering.stats().unstored_blocks, 0u);
  }
}

// What one server computed another finds in the Redis that they share, and again once its RAM forgot it. A few cases: the stores move
// bytes, whatever they mean.
class EqualityOverRedis : public Equality {};

TEST_P(EqualityOverRedis, SpilledAndReadByAnother) {
  kv::RedisServer redis;
  EngineConfig shared = config();
  shared.tiers.redis_url = "redis://127.0.0.1:" + std::to_string(redis.address().port);
  World first(shared), second(shared);
  ASSERT_TRUE(first.is_ready() && second.is_ready());
  int round = 0;
  for (World* world : {&first, &second, &second}) {
    SCOPED_TRACE(round);
    wait_for_identity(*world);
    kv::Tiering& tiering = world->runner().tiers()->tiering();
    tiering.set_compute_cost(world->runner().model_id(), 1e6);  // a tiny model is computed sooner than read
    const uint64_t before = tiering.stats().restored_tokens[0];
    world->forget_trace();
    world->submit_subject(prompt(), kGeneratedTokens, sched::PromptLogits::kNone);
    expect_same(world->run(), kGeneratedTokens, sched::PromptLogits::kNone);
    EXPECT_EQ(tiering.stats().restored_tokens[0] - before, round == 0 ? 0u : kPromptTokens / 32 * 32u);
    world->finish_storing();
    world->runner().prefixes()->clear();
    ++round;
  }
}

// A conversation held by a session while others take all the memory there is: what its next turn reuses gives the same bits, forked or not.
TEST_P(EqualityOfKept, HeldAndForkedBySessions) {
  EngineConfig tight = config();
  tight.kv_memory_bytes =
      std::string_view(GetParam().family) == "gemma3" ? 8 << 20 : 4 << 20;  // an extent for each group
  World world(tight);
  ASSERT_TRUE(world.is_ready());
  kv::Sessions& sessions = *world.runner().sessions();
  const kv::SessionKey chat{{}, "chat"};
  world.enter_session(chat);
  world.submit_subject(prompt(), kGeneratedTokens, sched::PromptLogits::kNone);
  expect_same(world.run(), kGeneratedTokens, sched::PromptLogits::kNone);
  ASSERT_TRUE(sessions.fork(chat, "fork"));
  // Other prompts until some are evicted: those of the sessions are not.
  for (uint32_t i = 0; i < 200 && world.runner().prefixes()->stats().evicted_for_room == 0; ++i) {
    world.submit_neighbour(random_tokens(2000 + i, 320), 1);
    world.run();
  }
  EXPECT_GT(world.runner().prefixes()->stats().evicted_for_room, 0u);
  EXPECT_EQ(world.runner().prefixes()->stats().evicted_held, 0u);
  int n_more = 12;  // what the last one computed
  for (const char* name : {"chat", "fork"}) {
    SCOPED_TRACE(name);
    world.enter_session({{}, name});
    expect_same_turn(world, n_more);
    n_more += 11;
  }
  const Status sound = sessions.check_integrity();
  EXPECT_TRUE(sound) << sound.error().message;
}

// The table of sessions comes back with the next process; its conversation goes on from the disk, or from what it exported.
TEST_P(EqualityOfKept, SessionsRestoredAndImported) {
  const TestFolder folder, other;
  const std::vector<std::byte> secret(32, std::byte{3});
  const kv::SessionKey chat{{}, "chat"};
  std::vector<std::vector<std::byte>> parts;
  for (int start = 0; start < 3; ++start) {
    SCOPED_TRACE(start);
    World world(with_disk(config(), start < 2 ? folder : other));
    ASSERT_TRUE(world.is_ready());
    wait_for_identity(world);
    StepRunner& runner = world.runner();
    runner.tiers()->tiering().set_compute_cost(runner.model_id(), 1e6);
    const Sha256 identity = *runner.tiers()->tiering().identity(runner.model_id());
    kv::SessionTransfer transfer(runner.session_memory(), secret);
    const auto known = runner.sessions()->info(chat);
    EXPECT_EQ(known ? known->n_tokens : 0, start == 1 ? kPromptTokens + 11u : 0u);
    for (const std::vector<std::byte>& part : parts) {
      const Status imported = transfer.import_part(chat, runner.model_id(), part, identity);
      ASSERT_TRUE(imported) << imported.error().message;
    }
    world.enter_session(chat);
    world.submit_subject(prompt(), kGeneratedTokens, sched::PromptLogits::kNone);
    expect_same(world.run(), kGeneratedTokens, sched::PromptLogits::kNone);
    // The answer's first tokens filled one block more, which only the import brought back: all but the prompt's last token.
    const uint64_t expected[] = {0, kPromptTokens / 32 * 32, kPromptTokens - 1};
    EXPECT_EQ(world.reused_tokens(), expected[start]);
    EXPECT_EQ(runner.tiers()->tiering().stats().restored_tokens[0], start == 1 ? kPromptTokens / 32 * 32u : 0u);
    world.finish_storing();
    if (start != 1) continue;
    auto part = transfer.export_part(chat, 0, identity, kv::Patience::kNever);
    ASSERT_TRUE(part) << part.error().message;
    parts.push_back(std::move(std::get<kv::SessionTransfer::Exported>(*part).bytes));
  }
}

// Sanitizers look for other bugs than differing bits, and take ten times as long: two cases are enough for them.
std::vector<Case> all_cases() {
  using kernels::Arithmetic;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {{"qwen3", Arithmetic::kInt8, "q4"}, {"gemma3", Arithmetic::kInt8, "auto"}};
#else
  std::vector<Case> cases{{"llama", Arithmetic::kInt8, "q4"},
                          {"qwen2", Arithmetic::kF32, "k8v4"},
                          {"qwen3", Arithmetic::kBf16, "q4"},
                          {"gemma3", Arithmetic::kInt8, "k8v4"}};
  for (const char* family : {"llama", "qwen2", "qwen3", "gemma3"}) {
    for (const Arithmetic arithmetic : {Arithmetic::kInt8, Arithmetic::kF32, Arithmetic::kBf16}) {
      for (const char* kv_format : {"auto", "bf16"}) cases.push_back({family, arithmetic, kv_format});
    }
  }
  return cases;
#endif
}
std::vector<Case> few_cases() {
  const std::vector<Case> all = all_cases();
  return {all.front(), all.back()};
}
// One case of each family and KV format, with an arithmetic that goes round; or all the others.
enum class Part { kFirst, kOthers };
std::vector<Case> part_of_cases(Part part) {
  std::map<std::pair<std::string, std::string>, std::vector<Case>> same;  // but for the arithmetic
  for (const Case& c : all_cases()) same[{c.family, c.kv_format}].push_back(c);
  std::vector<Case> first, others;
  size_t turn = 0;
  for (const auto& [what, cases] : same) {
    for (size_t i = 0; i < cases.size(); ++i) (i == turn % cases.size() ? first : others).push_back(cases[i]);
    ++turn;
  }
  return part == Part::kFirst ? first : others;
}
INSTANTIATE_TEST_SUITE_P(Models, EqualityOverRedis, ::testing::ValuesIn(few_cases()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Models, Equality, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Models, EqualityOfKept, ::testing::ValuesIn(part_of_cases(Part::kFirst)),
                         [](const auto& info) { return name_of(info.param); });
// Only in make test-all.
INSTANTIATE_TEST_SUITE_P(DISABLED_Others, EqualityOfKept, ::testing::ValuesIn(part_of_cases(Part::kOthers)),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace pagoda::engine
