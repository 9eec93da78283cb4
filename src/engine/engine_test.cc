#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

using std::chrono::milliseconds;

// One request as its client sees it.
class Client {
 public:
  Client(Engine& engine, Request request)
      : signals_(std::make_shared<std::atomic<int>>(0)),
        submitted_(engine.submit(std::move(request), [signals = signals_] {
          signals->fetch_add(1);
          signals->notify_one();
        })) {}

  RequestId id() const { return submitted_.id; }

  // Until something ended: every choice, or the request by failing. Gives up never; ctest has a limit.
  void wait(size_t n_choices = 1) {
    while (finished.size() < n_choices && !failed) {
      const int before = signals_->load();
      if (!look()) signals_->wait(before);
    }
  }
  // What is there; false if nothing was new.
  bool look() {
    const std::vector<Event> events = submitted_.stream->take();
    for (const Event& event : events) {
      if (const auto* delta = std::get_if<Delta>(&event)) {
        text[delta->choice] += delta->text;
        auto& list = tokens[delta->choice];
        list.insert(list.end(), delta->tokens.begin(), delta->tokens.end());
      } else if (const auto* end = std::get_if<Finished>(&event)) {
        EXPECT_TRUE(finished.emplace(end->choice, *end).second);
      } else if (const auto* failure = std::get_if<Failed>(&event)) {
        EXPECT_FALSE(failed);
        failed = failure->error;
      } else {
        accepted = std::get<Accepted>(event);
      }
    }
    return !events.empty();
  }

  std::map<int, std::string> text;
  std::map<int, std::vector<TokenId>> tokens;
  std::map<int, Finished> finished;
  std::optional<Error> failed;
  std::optional<Accepted> accepted;

 private:
  std::shared_ptr<std::atomic<int>> signals_;
  Engine::Submitted submitted_;
};

Request request_of(uint32_t salt, int n_prompt, int n_tokens) {
  Request request;
  request.prompt = TokenPrompt{random_tokens(salt, n_prompt)};
  request.max_tokens = n_tokens;
  request.seed = salt;
  request.stop.end_of_text = StopParams::EndOfText::kIgnore;
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Engine> make(const std::function<void(EngineConfig&)>& change = [](EngineConfig&) {}) {
    EngineConfig config = tiny_config(tiny_model("tiny-llama"));
    change(config);
    auto engine = Engine::create(config);
    EXPECT_TRUE(engine) << engine.error().to_string();
    return engine ? std::move(*engine) : nullptr;
  }
  // Blocks in use return to 0; what is still on its way gets a moment.
  static void expect_empty(const Engine& engine) {
    for (int i = 0;
         i < 2000 && (engine.stats().kv_live_blocks > 0 || engine.stats().running + engine.stats().waiting > 0); ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.kv_live_blocks, 0u);
    EXPECT_EQ(stats.kv_live_bytes, 0u);
    EXPECT_EQ(stats.running + stats.waiting, 0);
  }
};

TEST_F(EngineTest, AnswersWithTokensTextUsageAndARecord) {
  const auto engine = make();
  Client client(*engine, request_of(1, 40, 10));
  client.wait();
  ASSERT_FALSE(client.failed) << client.failed->to_string();
  EXPECT_EQ(client.accepted->prompt_tokens, 40);
  EXPECT_EQ(client.tokens[0].size(), 10u);
  EXPECT_EQ(client.finished[0].reason, FinishReason::kLength);
  EXPECT_EQ(client.finished[0].usage.completion_tokens, 10);
  EXPECT_EQ(client.finished[0].usage.prompt_tokens, 40);
  expect_empty(*engine);

  const auto record = engine->records().requests.pop();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->id, client.id());
  EXPECT_LE(record->arrival_us, record->queued_us);
  EXPECT_LE(record->queued_us, record->started_us);
  EXPECT_LE(record->started_us, record->first_token_us);
  EXPECT_LE(record->first_token_us, record->finished_us);
  EXPECT_EQ(record->completion_tokens, 10);
  EXPECT_EQ(record->outcome, RequestRecord::Outcome::kLength);
  EXPECT_EQ(record->n_choices, 1);
  EXPECT_EQ(record->max_tokens, 10);
  EXPECT_EQ(record->max_choice_tokens, 10);
  int rows = 0;
  while (const auto step = engine->records().steps.pop()) rows += step->prefill_rows + step->decode_rows;
  EXPECT_EQ(rows, 49);
}

TEST_F(EngineTest, StepRecordsHoldEachTokenAndEachGapOnce) {
  const auto engine = make();
  Request asked = request_of(1, 40, 10);
  asked.n_choices = 3;
  Client client(*engine, asked);
  client.wait();
  ASSERT_FALSE(client.failed) << client.failed->to_string();
  expect_empty(*engine);
  StepTokens sum;
  int n_gaps = 0, n_first = 0;
  int64_t gaps_us = 0;
  while (const auto step = engine->records().steps.pop()) {
    sum.generated += step->tokens.generated;
    sum.prompt += step->tokens.prompt;
    sum.cached += step->tokens.cached;
    for (const int n : step->tokens.gaps.counts) n_gaps += n;
    for (const int n : step->tokens.first_token.counts) n_first += n;
    gaps_us += step->tokens.gaps.sum_us;
  }
  EXPECT_EQ(sum.generated, 30);
  EXPECT_EQ(n_gaps, 27);
  EXPECT_EQ(n_first, 1);
  EXPECT_EQ(sum.prompt, 40);
  EXPECT_EQ(sum.cached, 0);
  const auto record = engine->records().requests.pop();
  ASSERT_TRUE(record);
  EXPECT_LE(gaps_us, 3 * (record->finished_us - record->first_token_us));
  EXPECT_EQ(record->max_choice_tokens, 10);
  const Timing timing = client.finished[0].timing;
  EXPECT_EQ(timing.queue_us, record->started_us - record->queued_us);
  EXPECT_EQ(timing.prefill_us, record->first_token_us - record->started_us);
  EXPECT_GT(timing.decode_us, 0);
}

// Asks, and waits for the answer.
Result<SessionAnswer> ask_session(Engine& engine, SessionAsk ask) {
  std::atomic<bool> has_answer{false};
  Result<SessionAnswer> answer = SessionEnded{};
  engine.ask_session(std::move(ask), [&](Result<SessionAnswer> heard) {
    answer = std::move(heard);
    has_answer = true;
    has_answer.notify_one();
  });
  has_answer.wait(false);
  return answer;
}

TEST_F(EngineTest, TellsHowLongATurnTakes) {
  const auto engine = make();
  std::atomic<bool> may_go = false;
  engine->ask_kv([&](const kv::Account&) { may_go.wait(false); });
  while (engine->stats().turn_us < 20'000) std::this_thread::sleep_for(milliseconds(1));
  may_go = true;
  may_go.notify_one();
  while (engine->stats().turn_us > 0) std::this_thread::sleep_for(milliseconds(1));
}

TEST_F(EngineTest, SessionsHoldWhatRequestsLeave) {
  const auto engine = make();
  Request request = request_of(1, 100, 10);
  request.session_id = "chat";
  request.n_choices = 2;
  Client client(*engine, request);
  client.wait(2);
  ASSERT_FALSE(client.failed) << client.failed->to_string();
  EXPECT_EQ(client.finished[0].cache->session->id, "chat");
  EXPECT_EQ(client.finished[0].cache->session->held_tokens, 96);
  expect_empty(*engine);
  SessionAsk ask;
  ask.name = "chat";
  const auto told = ask_session(*engine, ask);
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(std::get<SessionReport>(*told).info.n_tokens, 109u);
  EXPECT_EQ(std::get<SessionReport>(*told).info.n_turns, 1u) << "of several choices the first";
  EXPECT_EQ(std::get<SessionReport>(*told).info.n_running, 0);
  ask.cache_salt = "other";
  EXPECT_EQ(ask_session(*engine, ask).error().code, ErrorCode::kNotFound);
  ask.cache_salt.clear();
  ask.verb = SessionAsk::Verb::kDelete;
  EXPECT_TRUE(ask_session(*engine, ask));
}

struct IdleCounter final : IdleWork {
  struct Seen {
    std::atomic<const Engine*> engine{nullptr};
    std::atomic<int> n_made{0}, n_pieces{0}, n_beside_requests{0};
  };
  explicit IdleCounter(Seen& into) : seen(into) { ++seen.n_made; }
  bool do_piece() override {
    std::this_thread::sleep_for(milliseconds(1));
    if (const Engine* engine = seen.engine; engine != nullptr && engine->stats().running > 0) ++seen.n_beside_requests;
    return ++seen.n_pieces % 200 != 0;
  }
  Seen& seen;
};

TEST_F(EngineTest, IdleWorkGivesWayAndEnds) {
  IdleCounter::Seen seen;
  const auto engine = make([&](EngineConfig& config) {
    config.idle.after_us = 20'000;
    config.idle.make = [&](const StepRunner&) { return std::make_unique<IdleCounter>(seen); };
  });
  seen.engine = engine.get();
  const auto wait_for = [&](int n) {
    for (int i = 0; i < 5000 && seen.n_pieces < n; ++i) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_GE(seen.n_pieces.load(), n);
  };
  wait_for(5);
  for (uint32_t i = 0; i < 5; ++i) {
    Client client(*engine, request_of(i, 40, 100));
    client.wait();
    EXPECT_EQ(client.tokens[0].size(), 100u);
  }
  EXPECT_EQ(seen.n_beside_requests, 0);
  wait_for(200);
  std::this_thread::sleep_for(milliseconds(60));
  EXPECT_EQ(seen.n_pieces, 200) << "it is over";
  EXPECT_EQ(seen.n_made, 1);
}

TEST_F(EngineTest, AReportSaysWhatTheSessionHoldsNotWhatTheTurnHad) {
  const auto engine = make();
  const auto held_after = [&](Request request) {
    request.session_id = "chat";
    Client client(*engine, request);
    client.wait(request.n_choices);
    EXPECT_FALSE(client.failed);
    if (!client.finished[0].cache || !client.finished[0].cache->session) return -1;
    return client.finished[request.n_choices - 1].cache->session->held_tokens;
  };
  EXPECT_EQ(held_after(request_of(2, 10, 5)), 0);
  EXPECT_EQ(held_after(request_of(1, 100, 10)), 96);
  EXPECT_EQ(held_after(request_of(2, 10, 5)), 96) << "a turn shorter than a block";
  EXPECT_EQ(held_after(request_of(1, 50, 0)), 96) << "a beginning of what is held";
  EXPECT_EQ(held_after(request_of(3, 64, 0)), 64) << "nothing is sampled: the prompt's last token is computed";
  EXPECT_EQ(held_after(request_of(3, 64, 1)), 64) << "the token that was sampled is not computed";
  Request two = request_of(4, 40, 30);
  two.n_choices = 2;
  EXPECT_EQ(held_after(two), 64) << "of several choices the first one's";
}

TEST_F(EngineTest, ASessionOfACancelledRequestIsLeft) {
  const auto engine = make();
  Request request = request_of(1, 100, 1000);
  request.session_id = "chat";
  Client client(*engine, request);
  while (client.tokens[0].size() < 3) client.look();
  engine->cancel(client.id());
  expect_empty(*engine);
  SessionAsk ask;
  ask.name = "chat";
  const auto told = ask_session(*engine, ask);
  ASSERT_TRUE(told);
  EXPECT_EQ(std::get<SessionReport>(*told).info.n_running, 0);
  EXPECT_GE(std::get<SessionReport>(*told).info.n_tokens, 100u);
}

TEST_F(EngineTest, AModelFileThatChangedEndsExportsAtOnce) {
  std::filesystem::path path;
  const auto engine = make([&](EngineConfig& config) { path = config.model_path; });
  std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(5));
  SessionAsk ask;
  ask.name = "chat";
  ask.verb = SessionAsk::Verb::kCreate;
  ASSERT_TRUE(ask_session(*engine, ask));
  ask.verb = SessionAsk::Verb::kExport;
  auto told = ask_session(*engine, ask);
  for (; told.error().code == ErrorCode::kUnavailable; told = ask_session(*engine, ask)) std::this_thread::yield();
  EXPECT_EQ(told.error().code, ErrorCode::kConflict);
}

TEST_F(EngineTest, WithoutPrefixesThereAreNoSessions) {
  const auto engine = make([](EngineConfig& config) { config.prefix_cache = PrefixCache::kOff; });
  Request request = request_of(1, 100, 4);
  request.session_id = "chat";
  Client client(*engine, request);
  client.wait();
  EXPECT_FALSE(client.failed);
  EXPECT_EQ(ask_session(*engine, {}).error().code, ErrorCode::kUnsupported);
}

TEST_F(EngineTest, SeedsAreIndependentOfNeighbours) {
  const auto engine = make();
  std::map<uint32_t, std::vector<TokenId>> alone;
  for (uint32_t salt = 1; salt <= 6; ++salt) {
    Client client(*engine, request_of(salt, static_cast<int>(salt * 31), 12));
    client.wait();
    alone[salt] = client.tokens[0];
  }
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t salt = 1; salt <= 6; ++salt) {
    clients.push_back(std::make_unique<Client>(*engine, request_of(salt, static_cast<int>(salt * 31), 12)));
    clients.push_back(std::make_unique<Client>(*engine, request_of(100 + salt, 50, 30)));
  }
  for (size_t i = 0; i < clients.size(); ++i) {
    clients[i]->wait();
    if (i % 2 == 1) continue;
    EXPECT_EQ(clients[i]->tokens[0], alone[static_cast<uint32_t>(i / 2 + 1)]);
  }
  expect_empty(*engine);
}

TEST_F(EngineTest, ChoicesDifferAndAddUp) {
  const auto engine = make();
  Request request = request_of(3, 20, 16);
  request.n_choices = 4;
  Client client(*engine, request), again(*engine, request);
  client.wait(4);
  again.wait(4);
  ASSERT_EQ(client.finished.size(), 4u);
  EXPECT_EQ(client.tokens, again.tokens);
  EXPECT_NE(client.tokens[0], client.tokens[1]);
  int most = 0;
  for (const auto& [choice, end] : client.finished) most = std::max(most, end.usage.completion_tokens);
  EXPECT_EQ(most, 64);
  Request one = request;
  one.n_choices = 1;
  Client first(*engine, one);
  first.wait();
  EXPECT_EQ(first.tokens[0], client.tokens[0]);
  expect_empty(*engine);
}

TEST_F(EngineTest, TheSameWithoutCacheAndUnderPressure) {
  const auto plain = make();
  Client reference(*plain, request_of(8, 60, 20));
  reference.wait();
  {
    const auto engine = make([](EngineConfig& config) { config.kv_reuse = KvReuse::kOff; });
    Client client(*engine, request_of(8, 60, 20));
    client.wait();
    EXPECT_EQ(client.tokens, reference.tokens);
    expect_empty(*engine);
  }
  const auto engine = make([](EngineConfig& config) { config.kv_memory_bytes = 2 << 20; });  // some 60 blocks
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t salt = 1; salt <= 24; ++salt)
    clients.push_back(std::make_unique<Client>(*engine, request_of(salt, 60, salt == 8 ? 20 : 100)));
  for (auto& client : clients) {
    client->wait();
    EXPECT_FALSE(client->failed);
  }
  EXPECT_EQ(clients[7]->tokens, reference.tokens);
  EXPECT_GT(engine->stats().preemptions, 0u);
  expect_empty(*engine);
}

TEST_F(EngineTest, CachedTokensAreReportedAndBelongToTheirNamespace) {
  const auto engine = make();
  std::vector<TokenId> tokens;
  const auto cached_tokens = [&](const std::function<void(Request&)>& change) {
    Request request = request_of(3, 100, 5);
    change(request);
    const auto n_choices = static_cast<size_t>(request.n_choices);
    Client client(*engine, std::move(request));
    client.wait(n_choices);
    if (tokens.empty()) tokens = client.tokens[0];
    EXPECT_TRUE(
        std::equal(tokens.rbegin(), tokens.rend(), client.tokens[0].rbegin()));  // behind the prompt, if asked for
    expect_empty(*engine);
    EXPECT_EQ(client.finished[0].usage.cached_tokens, engine->records().requests.pop()->cached_tokens);
    return client.finished[0].usage.cached_tokens;
  };
  EXPECT_EQ(cached_tokens([](Request&) {}), 0);
  EXPECT_GT(engine->stats().kv_cached_bytes, 0u);
  EXPECT_EQ(cached_tokens([](Request&) {}), 96);
  EXPECT_EQ(cached_tokens([](Request& r) { r.cache_salt = "x"; }), 0);
  EXPECT_EQ(cached_tokens([](Request& r) { r.cache_salt = "x"; }), 96);
  EXPECT_EQ(cached_tokens([](Request& r) { r.tenant = "x"; }), 0);
  EXPECT_EQ(cached_tokens([](Request& r) { r.prompt_logprobs = 0; }), 0);
  EXPECT_EQ(cached_tokens([](Request& r) { r.n_choices = 3; }), 96);
  EXPECT_EQ(engine->stats().reused_tokens, 96u * 2 + 96 * 3);
}

TEST_F(EngineTest, WithoutPrefixCacheNothingStays) {
  const auto engine = make([](EngineConfig& config) { config.prefix_cache = PrefixCache::kOff; });
  for (int i = 0; i < 2; ++i) {
    Client client(*engine, request_of(3, 100, 5));
    client.wait();
    EXPECT_EQ(client.finished[0].usage.cached_tokens, 0);
  }
  expect_empty(*engine);
  EXPECT_EQ(engine->stats().kv_cached_bytes, 0u);
}

TEST_F(EngineTest, CancelAtAnyMomentFreesBlocks) {
  const auto engine = make([](EngineConfig& config) { config.n_threads = 2; });
  std::minstd_rand random(11);
  for (int round = 0; round < 60; ++round) {
    Request request = request_of(static_cast<uint32_t>(round), 1 + static_cast<int>(random() % 300), 500);
    request.n_choices = 1 + static_cast<int>(random() % 3);
    Client victim(*engine, request);
    Client other(*engine, request_of(7, 9, 3));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    engine->cancel(victim.id());
    other.wait();
    EXPECT_EQ(other.tokens[0].size(), 3u);
    victim.look();
    EXPECT_FALSE(victim.failed);
  }
  engine->cancel(RequestId(123456789));
  expect_empty(*engine);
}

TEST_F(EngineTest, RefusalsArriveAsFailed) {
  const auto engine = make([](EngineConfig& config) { config.context_tokens = 100; });
  Client client(*engine, request_of(1, 100, 5));
  client.wait();
  ASSERT_TRUE(client.failed);
  EXPECT_EQ(client.failed->code, ErrorCode::kContextExceeded);
  EXPECT_EQ(engine->models()[0].context_tokens, 100);
  Client clamped(*engine, request_of(1, 90, 50));
  clamped.wait();
  EXPECT_EQ(clamped.tokens[0].size(), 10u);
  EXPECT_EQ(clamped.finished[0].reason, FinishReason::kLength);
}

TEST_F(EngineTest, AFullQueueIsOverloaded) {
  const auto engine = make([](EngineConfig& config) { config.max_queued = 2; });
  std::vector<std::unique_ptr<Client>> clients;
  for (uint32_t i = 0; i < 600; ++i) clients.push_back(std::make_unique<Client>(*engine, request_of(i, 30, 20)));
  int n_overloaded = 0;
  for (auto& client : clients) {
    client->wait();
    if (!client->failed) continue;
    EXPECT_EQ(client->failed->code, ErrorCode::kOverloaded);
    ++n_overloaded;
  }
  EXPECT_GT(n_overloaded, 0);
  EXPECT_LT(n_overloaded, 600);
  expect_empty(*engine);
}

TEST_F(EngineTest, DrainingRefusesNewAndFinishesOld) {
  const auto engine = make();
  Client old(*engine, request_of(1, 30, 200));
  while (!old.accepted) old.look();
  EXPECT_FALSE(engine->is_drained());
  engine->drain();
  Client late(*engine, request_of(2, 5, 5));
  late.wait();
  ASSERT_TRUE(late.failed);
  EXPECT_EQ(late.failed->code, ErrorCode::kUnavailable);
  old.wait();
  EXPECT_EQ(old.tokens[0].size(), 200u);
  for (int i = 0; i < 2000 && !engine->is_drained(); ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(engine->is_drained());
}

TEST_F(EngineTest, DestroyedWhileBusyTellsEveryone) {
  for (int round = 0; round < 5; ++round) {
    auto engine = make();
    std::vector<std::unique_ptr<Client>> clients;
    for (uint32_t i = 0; i < 8; ++i) clients.push_back(std::make_unique<Client>(*engine, request_of(i, 100, 900)));
    std::this_thread::sleep_for(milliseconds(round * 3));
    engine.reset();
    for (auto& client : clients) {
      client->look();
      ASSERT_TRUE(client->failed);
      EXPECT_EQ(client->failed->code, ErrorCode::kUnavailable);
    }
  }
}

TEST_F(EngineTest, ChatAndTextPromptsAreTokenized) {
  const auto engine = make();
  Request chat = request_of(1, 1, 5);
  chat.prompt = ChatPrompt{R"([{"role":"user","content":"hello"}])", {}, {}, ChatPrompt::GenerationPrompt::kAdd};
  Request text = request_of(1, 1, 5);
  text.prompt = TextPrompt{"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"};
  Client a(*engine, chat), b(*engine, text);
  a.wait();
  b.wait();
  ASSERT_FALSE(a.failed) << a.failed->to_string();
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.accepted->prompt_tokens, b.accepted->prompt_tokens);
}

TEST_F(EngineTest, BadFilesAreErrors) {
  EngineConfig config = tiny_config("/nonexistent.gguf");
  EXPECT_FALSE(Engine::create(config));
  config = tiny_config(tiny_model("tiny-llama"));
  config.kv_memory_bytes = 1000;
  const auto engine = Engine::create(config);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace pagoda::engine
