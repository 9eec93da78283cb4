// What the engine tells of its cache: reports of requests, the account of the memory, the block map. On a generated model.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "engine/engine.h"
#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

std::unique_ptr<Engine> make_engine(const std::function<void(EngineConfig&)>& change = [](EngineConfig&) {}) {
  EngineConfig config = tiny_config(tiny_model("tiny-llama"));
  change(config);
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return engine ? std::move(*engine) : nullptr;
}

Request request_of(std::vector<TokenId> prompt, int n_tokens = 5) {
  Request request;
  request.prompt = TokenPrompt{std::move(prompt)};
  request.max_tokens = n_tokens;
  request.seed = 1;
  request.stop.end_of_text = StopParams::EndOfText::kIgnore;
  return request;
}

// Submits; answers the last choice's end.
std::future<Finished> submit(Engine& engine, Request request) {
  struct State {
    std::promise<Finished> done;
    std::weak_ptr<OutputStream> stream;
    std::atomic<bool> has_stream{false};
    int left = 0;
  };
  auto state = std::make_shared<State>();
  state->left = request.n_choices;
  std::future<Finished> done = state->done.get_future();
  const auto wake = [state] {
    state->has_stream.wait(false);
    for (Event& event : state->stream.lock()->take()) {
      if (auto* end = std::get_if<Finished>(&event); end != nullptr && --state->left == 0) state->done.set_value(*end);
    }
  };
  state->stream = engine.submit(std::move(request), wake).stream;
  state->has_stream = true;
  state->has_stream.notify_all();
  return done;
}

Finished run(Engine& engine, Request request) { return submit(engine, std::move(request)).get(); }

kv::Account account_of(Engine& engine) {
  std::promise<kv::Account> promise;
  engine.ask_kv([&](kv::Account account) { promise.set_value(std::move(account)); });
  return promise.get_future().get();
}
kv::BlockMapPage map_of(Engine& engine, uint64_t page = 0) {
  std::promise<kv::BlockMapPage> promise;
  engine.ask_kv_blocks(page, [&](kv::BlockMapPage map) { promise.set_value(std::move(map)); });
  return promise.get_future().get();
}

TEST(ExplainTest, ReportsTellWhatWasReusedAndWhereTokensPart) {
  const auto engine = make_engine();
  std::vector<TokenId> prompt = random_tokens(3, 100);
  const Finished cold = run(*engine, request_of(prompt));
  ASSERT_TRUE(cold.cache);
  EXPECT_EQ(cold.cache->prompt_tokens, 100);
  EXPECT_EQ(cold.cache->reused_tokens, 0);
  EXPECT_EQ(cold.cache->first_miss(), kv::MissReason::kCold);
  ASSERT_TRUE(cold.cache->divergence);
  EXPECT_EQ(cold.cache->divergence->position, 0);
  EXPECT_EQ(cold.cache->divergence->asked.id, prompt[0]);
  EXPECT_FALSE(cold.cache->divergence->cached);
  const TokenId was = prompt[70];
  prompt[70] = TokenId(was.value == 40 ? 41 : 40);
  const Finished changed = run(*engine, request_of(prompt));
  EXPECT_EQ(changed.cache->reused_tokens, 70);
  EXPECT_EQ(changed.cache->copied_tokens, 6);
  EXPECT_EQ(changed.cache->computed_tokens(), 30);
  EXPECT_EQ(changed.cache->divergence->position, 70);
  EXPECT_EQ(changed.cache->divergence->asked.id, prompt[70]);
  EXPECT_FALSE(changed.cache->divergence->asked.bytes.empty());
  ASSERT_TRUE(changed.cache->divergence->cached);
  EXPECT_EQ(changed.cache->divergence->cached->id, was);
  EXPECT_EQ(changed.usage.cached_tokens, 70);
  engine->records().requests.pop();
  std::optional<RequestRecord> record;
  while (!(record = engine->records().requests.pop())) std::this_thread::yield();
  EXPECT_EQ(record->cached_tokens, 70);
  EXPECT_EQ(record->copied_tokens, 6);
  EXPECT_EQ(record->miss, kv::MissReason::kCold);
}

TEST(ExplainTest, ATemplateThatChangedIsToldFromAMessage) {
  const auto engine =
      make_engine([](EngineConfig& config) { config.chat_template = "Today is {{ day }}: {{ messages[0].content }}"; });
  const auto chat = [&](const std::string& day, const std::string& content) {
    Request request = request_of({});
    request.prompt = ChatPrompt{.messages_json = R"([{"role":"user","content":")" + content + R"("}])",
                                .tools_json = {},
                                .template_kwargs_json = R"({"day":")" + day + R"("})",
                                .message_texts = {content}};
    return run(*engine, std::move(request)).cache;
  };
  const std::string story = "a story of forty words and more, about nothing in particular but long enough";
  EXPECT_EQ(chat("Monday", story)->first_miss_word(), "cold");
  EXPECT_EQ(chat("Tuesday", story)->first_miss_word(), "template");
  EXPECT_EQ(chat("Monday", "another one, as long as the first and the second, and about as much as they are")
                ->first_miss_word(),
            "cold");
}

// A request with a salt gets the same report whatever others have cached, and the other way round.
TEST(ExplainTest, ReportsTellNothingOfOtherNamespaces) {
  const std::vector<TokenId> prompt = random_tokens(3, 100);
  const auto report_after = [&](const std::vector<std::string>& salts_before, const std::string& salt) {
    const auto engine = make_engine();
    for (const std::string& before : salts_before) {
      Request request = request_of(prompt);
      request.cache_salt = before;
      run(*engine, std::move(request));
    }
    Request request = request_of(prompt);
    request.cache_salt = salt;
    return run(*engine, std::move(request)).cache;
  };
  for (const std::string salt : {"", "mine"}) {
    const auto alone = report_after({}, salt), after = report_after({"theirs", "others"}, salt);
    EXPECT_EQ(after->reused_tokens, 0);
    EXPECT_EQ(after->first_miss(), alone->first_miss());
    EXPECT_EQ(after->divergence->position, alone->divergence->position);
    EXPECT_FALSE(after->divergence->cached);
  }
  const auto open = report_after({""}, "mine");
  EXPECT_EQ(open->first_miss(), kv::MissReason::kNamespace);
  EXPECT_FALSE(open->divergence->cached);
}

TEST(ExplainTest, ReasonsOfThoseWhoDoNotAsk) {
  const auto engine = make_engine();
  Request request = request_of(random_tokens(3, 100));
  request.prompt_logprobs = 0;
  EXPECT_EQ(run(*engine, std::move(request)).cache->first_miss(), kv::MissReason::kOptedOut);
  const auto off = make_engine([](EngineConfig& config) { config.prefix_cache = PrefixCache::kOff; });
  EXPECT_EQ(run(*off, request_of(random_tokens(3, 100))).cache->first_miss(), kv::MissReason::kOff);
  EXPECT_FALSE(account_of(*off).index);
}

TEST(ExplainTest, OffMeansNoReportsAndNoDistances) {
  const auto engine = make_engine([](EngineConfig& config) { config.explain = Explain::kOff; });
  run(*engine, request_of(random_tokens(3, 100)));
  const Finished again = run(*engine, request_of(random_tokens(3, 100)));
  EXPECT_FALSE(again.cache);
  EXPECT_EQ(again.usage.cached_tokens, 96);
  EXPECT_FALSE(account_of(*engine).reuse);
}

TEST(ExplainTest, WaitsAndPreemptionsAreReported) {
  const auto engine = make_engine([](EngineConfig& config) {
    config.kv_memory_bytes = 2 << 20;  // some 60 blocks
    config.step_tokens = 64;
    config.chunk_tokens = 32;
  });
  std::vector<std::future<Finished>> same, many;
  for (int i = 0; i < 4; ++i) same.push_back(submit(*engine, request_of(random_tokens(9, 300))));
  int64_t waited_us = 0;
  for (auto& one : same) waited_us += one.get().cache->waited_us;
  EXPECT_GT(waited_us, 0);
  for (uint32_t i = 0; i < 24; ++i) many.push_back(submit(*engine, request_of(random_tokens(20 + i, 60), 100)));
  int preemptions = 0, recomputed = 0;
  for (auto& one : many) {
    const Finished end = one.get();
    preemptions += end.cache->preemptions;
    recomputed += end.cache->recomputed_tokens;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(recomputed, 0);
}

TEST(ExplainTest, TheAccountAddsUpWhileRequestsRun) {
  const auto engine = make_engine([](EngineConfig& config) { config.n_threads = 1; });
  std::vector<std::future<Finished>> running;
  for (uint32_t i = 0; i < 6; ++i) running.push_back(submit(*engine, request_of(random_tokens(i % 2, 70), 120)));
  uint64_t most_live = 0;
  double most_shared = 0;
  bool are_done = false;
  while (!are_done) {
    are_done = std::ranges::all_of(
        running, [](auto& one) { return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    const kv::Account account = account_of(*engine);
    const kv::PoolStats& pool = account.pool;
    ASSERT_EQ(pool.live_bytes + pool.cached_bytes + pool.free_bytes + pool.overhead_bytes, pool.budget_bytes);
    const uint64_t stored = sum_bytes(account, &kv::GroupAccount::stored_tokens);
    ASSERT_EQ(stored + sum_bytes(account, &kv::GroupAccount::wasted_tokens) +
                  sum_bytes(account, &kv::GroupAccount::reserved_tokens),
              pool.live_bytes);
    most_live = std::max(most_live, pool.live_bytes);
    const uint64_t logical = sum_bytes(account, &kv::GroupAccount::logical_tokens);
    if (stored > 0) most_shared = std::max(most_shared, static_cast<double>(logical) / static_cast<double>(stored));
  }
  EXPECT_GT(most_live, 0u);
  EXPECT_GT(most_shared, 1.2);  // three requests of each prompt
  const kv::Account idle = account_of(*engine);
  EXPECT_EQ(idle.reuse->looked_up_blocks, 6 * 2u);
  EXPECT_GE(idle.reuse->hit_rate(1), 4.0 / 6);
  uint64_t n_cached = 0;
  for (const kv::ExtentView& extent : map_of(*engine).extents) {
    for (const kv::SlotView& slot : extent.slots) n_cached += slot.state == kv::BlockState::kCached ? 1 : 0;
  }
  EXPECT_EQ(n_cached, idle.pool.cached_blocks);
}

// Those who ask while it stops get no answer, and nobody hangs.
TEST(ExplainTest, AskedWhileItEnds) {
  for (int round = 0; round < 3; ++round) {
    auto engine = make_engine();
    for (int i = 0; i < 50; ++i) engine->ask_kv_blocks(0, [](kv::BlockMapPage) {});
    engine.reset();
  }
}

}  // namespace
}  // namespace pagoda::engine
