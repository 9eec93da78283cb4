// The executor with batches made by hand: what no scheduler plans yet, and what a step may not do.
#include "engine/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>

#include "base/digest.h"
#include "engine/batch_builder.h"
#include "engine/test_models.h"
#include "models/forward.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined: compilers know that new and free do not belong together.
[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace pagoda::engine {
namespace {

constexpr int kBlocks = 400;  // that a world has, in each group
constexpr int kMaxRows = 256;
constexpr kv::ModelId kModel(0);

// One sequence: its tokens, and a table per group.
struct Subject {
  std::vector<TokenId> tokens;
  std::vector<std::vector<kv::BlockId>> tables;

  int position() const { return static_cast<int>(tokens.size()); }
};

// A model and its blocks, and executors over them with different numbers of threads.
class World {
 public:
  World(const std::string& family, kernels::Arithmetic arithmetic, std::string_view kv_format = "auto")
      : arithmetic_(arithmetic) {
    kernels::set_float_mode();
    auto gguf = weights::Gguf::open(tiny_model("tiny-" + family));
    auto model = models::load_model(*gguf, kv_format, pool(1));
    model_ = std::move(*model);
    std::vector<size_t> block_bytes;
    for (const models::AttentionGroup& group : model_->groups()) block_bytes.push_back(group.layout.block_bytes);
    const size_t extent = *std::ranges::max_element(block_bytes);
    store_ = std::make_unique<BlockStore>(*BlockStore::make(kBlocks * block_bytes.size(), extent, {block_bytes}));
  }

  const models::Model& model() const { return *model_; }
  BlockStore& store() { return *store_; }
  ThreadPool& pool(int n_threads) {
    auto& pool = pools_[n_threads];
    if (!pool) pool = std::make_unique<ThreadPool>(n_threads, kernels::set_float_mode);
    return *pool;
  }
  Executor& executor(int n_threads) {
    auto& executor = executors_[n_threads];
    const ExecutorLimits limits{kMaxRows, kMaxRows, 4096};
    if (!executor) {
      executor = std::move(*make_cpu_executor(std::array{ExecutedModel{model_.get(), model_->groups()}}, *store_,
                                              pool(n_threads), kernels::kernel_table(kernels::best_isa()), arithmetic_,
                                              limits));
    }
    return *executor;
  }

  // The first `shared_blocks` blocks are those of another.
  Subject subject(const Subject* other = nullptr, int shared_blocks = 0) {
    Subject out;
    out.tables.resize(model_->groups().size());
    if (other == nullptr) return out;
    out.tokens.assign(other->tokens.begin(), other->tokens.begin() + shared_blocks * kv::kBlockTokens);
    for (size_t g = 0; g < out.tables.size(); ++g)
      out.tables[g].assign(other->tables[g].begin(), other->tables[g].begin() + shared_blocks);
    return out;
  }

  void begin() { builder_.begin(kModel, model_->groups(), model_->config().n_heads / model_->config().n_kv_heads); }
  // The next rows of a sequence, which it then has behind it.
  void add(Subject& subject, std::span<const TokenId> tokens, int n_logits) {
    BatchBuilder::SequenceInput input{
        .tokens = tokens, .first_position = subject.position(), .n_logits = n_logits, .tables = {}};
    subject.tokens.insert(subject.tokens.end(), tokens.begin(), tokens.end());
    for (auto& table : subject.tables) {
      while (table.size() * kv::kBlockTokens < subject.tokens.size())
        table.push_back(kv::BlockId::at(next_extent_++, 0));
      input.tables.emplace_back(table);
    }
    builder_.add(input);
  }
  const models::Batch& finish() { return builder_.finish(); }

  void fill(Subject& subject, uint32_t seed, int n_tokens) {
    const std::vector<TokenId> tokens = random_tokens(seed, n_tokens);
    for (int done = 0; done < n_tokens; done += kMaxRows) {
      const int n = std::min(kMaxRows, n_tokens - done);
      begin();
      add(subject, std::span(tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(n)), 0);
      executor(1).run({}, finish());
    }
  }

 private:
  const kernels::Arithmetic arithmetic_;
  std::map<int, std::unique_ptr<ThreadPool>> pools_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<BlockStore> store_;
  std::map<int, std::unique_ptr<Executor>> executors_;
  BatchBuilder builder_;
  uint32_t next_extent_ = 0;
};

std::vector<uint64_t> hashes_of(std::span<const SampleResult> results) {
  std::vector<uint64_t> hashes;
  for (const SampleResult& result : results) {
    Xxh3Stream hash;
    hash.update(std::as_bytes(result.logits));
    hashes.push_back(hash.digest());
  }
  return hashes;
}

// Sanitizers look at who touches what, which is the same in all of them, and take their time.
std::vector<kernels::Arithmetic> arithmetics() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {kernels::Arithmetic::kInt8};
#else
  return {kernels::Arithmetic::kInt8, kernels::Arithmetic::kF32, kernels::Arithmetic::kBf16};
#endif
}

struct Setup {
  kernels::Arithmetic arithmetic;
  const char* kv_format = "auto";
};
std::vector<Setup> setups() {
  std::vector<Setup> setups{{kernels::Arithmetic::kInt8, "q4"}};
  for (const kernels::Arithmetic arithmetic : arithmetics()) setups.push_back({arithmetic});
  return setups;
}

class ExecutorTest : public ::testing::TestWithParam<const char*> {};

// Contexts of many spans, alone and together: cut differently for every number of threads.
TEST_P(ExecutorTest, SpansOverThreads) {
  for (const auto& [arithmetic, kv_format] : setups()) {
    World world(GetParam(), arithmetic, kv_format);
    Subject deep = world.subject(), middle = world.subject(), fresh = world.subject();
    world.fill(deep, 1, std::string_view(kv_format) == "q4" ? 1900 : 1100);
    world.fill(middle, 2, 700);
    const std::vector<TokenId> token = random_tokens(3, 1), chunk = random_tokens(4, 60);
    for (const bool is_mixed : {false, true}) {
      Subject a = deep, b = middle, c = fresh;
      world.begin();
      world.add(a, token, 1);
      if (is_mixed) {
        world.add(b, token, 1);
        world.add(c, chunk, 1);
      }
      const models::Batch batch = world.finish();
      const std::vector<uint64_t> want = hashes_of(world.executor(1).run({}, batch));
      for (const int n_threads : {2, 3, 5, 16}) {
        EXPECT_EQ(hashes_of(world.executor(n_threads).run({}, batch)), want) << n_threads << " threads";
      }
    }
  }
}

// Sequences with a common beginning, some of them longer than others', in one batch and alone.
TEST_P(ExecutorTest, SharedBeginningsChangeNoBit) {
  for (const auto& [arithmetic, kv_format] : setups()) {
    World world(GetParam(), arithmetic, kv_format);
    std::vector<Subject> subjects{world.subject()};
    world.fill(subjects[0], 1, 1100);  // four whole spans
    const auto join = [&](size_t with, int spans, int n_own) {
      subjects.push_back(world.subject(&subjects[with], spans * kernels::kSpanBlocks));
      world.fill(subjects.back(), static_cast<uint32_t>(10 + subjects.size()), n_own);
    };
    join(0, 2, 300);
    join(0, 4, 5);
    join(1, 3, 40);  // two spans of the first, one of the second
    join(0, 1, 300);
    subjects.push_back(world.subject());
    world.fill(subjects.back(), 9, 270);

    const auto n_rows = [](size_t i) { return i == 2 ? 3 : 1; };  // several rows, as in verifying drafts
    const auto tokens = [&](size_t i) { return random_tokens(static_cast<uint32_t>(50 + i), n_rows(i)); };
    std::vector<uint64_t> want;
    for (size_t i = 0; i < subjects.size(); ++i) {
      Subject alone = subjects[i];
      world.begin();
      world.add(alone, tokens(i), n_rows(i));
      for (const uint64_t hash : hashes_of(world.executor(1).run({}, world.finish()))) want.push_back(hash);
    }
    world.begin();
    for (size_t i = 0; i < subjects.size(); ++i) world.add(subjects[i], tokens(i), n_rows(i));
    const models::Batch batch = world.finish();
    EXPECT_EQ(std::ranges::count_if(batch.groups[0].work, &models::AttentionWork::shared),
              4);  // [0, 1) of five, [1, 2) of four, two pairs beyond
    for (const int n_threads : {1, 2, 7}) {
      EXPECT_EQ(hashes_of(world.executor(n_threads).run({}, batch)), want) << n_threads << " threads";
    }
  }
}

// The same, where only some of the sharing rows are wanted in the last layer.
TEST_P(ExecutorTest, SharedBeginningsBesidePrompts) {
  World world(GetParam(), kernels::Arithmetic::kInt8);
  Subject first = world.subject();
  world.fill(first, 1, 600);
  Subject second = world.subject(&first, 16), third = world.subject(&first, 16), prompt = world.subject();
  world.fill(second, 2, 30);
  world.fill(third, 3, 50);
  const std::vector<TokenId> token = random_tokens(4, 1), rows = random_tokens(5, 5), chunk = random_tokens(6, 90);
  Subject a = first, b = third;
  world.begin();
  world.add(a, token, 1);
  std::vector<uint64_t> want = hashes_of(world.executor(1).run({}, world.finish()));
  world.begin();
  world.add(b, rows, 2);
  for (const uint64_t hash : hashes_of(world.executor(1).run({}, world.finish()))) want.push_back(hash);

  world.begin();
  world.add(first, token, 1);
  world.add(second, rows, 0);
  world.add(third, rows, 2);
  world.add(prompt, chunk, 0);
  const models::Batch batch = world.finish();
  EXPECT_EQ(std::ranges::count_if(batch.groups[0].work, &models::AttentionWork::shared), 1);
  for (const int n_threads : {1, 3}) EXPECT_EQ(hashes_of(world.executor(n_threads).run({}, batch)), want);
}

TEST_P(ExecutorTest, StepsSplitByRowsHaveTheBitsOfOthers) {
  static_assert(kMaxRows >= 2 * models::kRowsPerPart && kMaxRows < 3 * models::kRowsPerPart);
  for (const auto arithmetic : {kernels::Arithmetic::kInt8, kernels::Arithmetic::kF32, kernels::Arithmetic::kBf16}) {
    World world(GetParam(), arithmetic);
    for (const int n_logits : {40, kMaxRows}) {
      Subject prompt = world.subject();
      world.begin();
      world.add(prompt, random_tokens(5, kMaxRows), n_logits);
      const models::Batch batch = world.finish();
      const auto by_panels = hashes_of(world.executor(3).run({}, batch));
      for (const int n_threads : {1, 2}) EXPECT_EQ(hashes_of(world.executor(n_threads).run({}, batch)), by_panels);
    }
  }
}

TEST_P(ExecutorTest, NothingAllocatesInAStep) {
  World world(GetParam(), kernels::Arithmetic::kInt8);
  Subject deep = world.subject(), fresh = world.subject();
  world.fill(deep, 1, 600);
  const std::vector<TokenId> token = random_tokens(3, 1), chunk = random_tokens(4, 200);
  Subject copies[] = {deep, deep, fresh};
  world.begin();
  world.add(copies[0], token, 1);
  const models::Batch decode = world.finish();
  world.begin();
  world.add(copies[1], token, 1);
  world.add(copies[2], chunk, 1);
  const models::Batch mixed = world.finish();
  Executor& executor = world.executor(2);
  executor.run({}, mixed);
  const int64_t before = allocations.load();
  executor.run({}, decode);
  executor.run({}, mixed);
  EXPECT_EQ(allocations.load(), before);
}

TEST_P(ExecutorTest, FiveBarriersPerLayerAndThreeInLongSteps) {
  World world(GetParam(), kernels::Arithmetic::kInt8);
  const int n_layers = world.model().config().n_layers;
  const models::StepLimits limits{2 * models::kRowsPerPart, 8, 1024, 2};
  models::Workspace workspace = *models::Workspace::make(world.model().config(), limits);
  models::ForwardPlan plan(world.model().config(), world.model().groups(), limits);
  const models::ExecContext context{kernels::kernel_table(kernels::best_isa()), kernels::Arithmetic::kInt8,
                                    world.pool(2), workspace};
  const auto phases = [&](int n_rows, int n_logits) {
    Subject subject = world.subject();
    world.begin();
    world.add(subject, random_tokens(1, n_rows), n_logits);
    const models::Batch& batch = world.finish();
    models::BlockAddresses addresses(batch.groups.size());
    for (size_t g = 0; g < batch.groups.size(); ++g) {
      for (const kv::BlockId block : batch.groups[g].blocks)
        addresses[g].push_back(world.store().address(kModel, kv::GroupId(static_cast<uint32_t>(g)), block));
    }
    const ThreadPool::Step step(world.pool(2));
    models::Forward forward(batch, addresses, plan, context);
    world.model().forward(forward);
    return forward.n_phases();
  };
  EXPECT_EQ(phases(1, 1), 1 + 5 * n_layers + 1);
  EXPECT_EQ(phases(models::kShortRows, models::kShortRows), 1 + 5 * n_layers + 1);
  EXPECT_EQ(phases(32, 0), 1 + 8 * (n_layers - 1) + 3);      // nobody samples: K and V are all of the last layer
  EXPECT_EQ(phases(32, 1), 1 + 8 * (n_layers - 1) + 4 + 6);  // one row of it goes on
  EXPECT_EQ(phases(2 * models::kRowsPerPart, 1), 1 + 3 * (n_layers - 1) + 2 + 6);
}

INSTANTIATE_TEST_SUITE_P(Families, ExecutorTest, ::testing::Values("llama", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace pagoda::engine
