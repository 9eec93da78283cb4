#include "serve/server.h"

#include <gmock/gmock.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "base/eventually.h"
#include "http/raw_client.h"
#include "serve/fake_engine.h"

namespace pagoda::serve {
namespace {

using engine::Accepted;
using engine::Delta;
using engine::Failed;
using engine::Finished;
using http::RawClient;
using std::chrono::milliseconds;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kHi = R"({"messages":[{"role":"user","content":"hi"}]})";
constexpr const char* kHiStream = R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";

std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", path, headers, body.size(), body);
}

class ServerTest : public testing::Test {
 protected:
  void start() {
    options_.port = 0;
    auto created = Server::create(engine_, options_);
    ASSERT_TRUE(created) << created.error().message;
    server_ = std::move(*created);
  }
  std::string ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);
    return client.read_answer();
  }
  std::string get(const std::string& path) { return ask("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"); }
  std::string chat(const std::string& body) { return ask(post("/v1/chat/completions", body)); }
  // To its last frame.
  std::string stream(const std::string& body) {
    RawClient client(server_->port());
    client.send(post("/v1/chat/completions", body));
    return client.read_until("[DONE]\n\n");
  }
  FakeEngine::Asked next_asked(uint64_t id) {
    EXPECT_TRUE(eventually([&] { return engine_.n_asked() >= id; }));
    return engine_.asked(id);
  }

  FakeEngine engine_;
  ServeOptions options_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, SmallRoutes) {
  start();
  EXPECT_THAT(get("/health"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Length: 0\r\n")));
  EXPECT_THAT(get("/ping"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(get("/version"), EndsWith(R"({"version":"0.1.0"})"));
  EXPECT_THAT(get("/"), EndsWith("Pagoda is running\n"));
  EXPECT_THAT(get("/v1/models"), HasSubstr(R"("data":[{"id":"tiny","object":"model")"));
  EXPECT_THAT(get("/v1/models/tiny"), HasSubstr(R"("root":"tiny.gguf")"));
  EXPECT_THAT(get("/v1/models/other"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr(R"("code":"model_not_found")")));
  EXPECT_THAT(get("/v1/engine"), HasSubstr(R"("kv_live_blocks":4)"));
  EXPECT_THAT(get("/v1/nothing"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr(R"({"error":{"message":"no such path: /v1/nothing")")));
  EXPECT_THAT(get("/v1/completions"), AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: POST, OPTIONS\r\n")));
}

TEST_F(ServerTest, AnswersAChat) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "hello"); });
  start();
  const std::string answer = ask(post("/v1/chat/completions", kHi, "X-Request-Id: mine-1\r\n"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("x-request-id: mine-1\r\n"));
  EXPECT_THAT(answer, HasSubstr(R"({"id":"chatcmpl-)"));
  EXPECT_THAT(answer, HasSubstr(R"("message":{"role":"assistant","content":"hello","refusal":null)"));
  EXPECT_THAT(answer, HasSubstr(R"("prompt_tokens":3,"completion_tokens":5,"total_tokens":8)"));
  EXPECT_EQ(engine_.asked(1).request.model, "tiny");
}

TEST_F(ServerTest, StreamsAChat) {
  start();
  RawClient client(server_->port());
  client.send(post("/v1/chat/completions", kHiStream));
  const auto asked = next_asked(1);
  asked.stream->push(Accepted{3});
  EXPECT_THAT(client.read_until("\r\n\r\n"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/event-stream")));
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr(R"("delta":{"role":"assistant","content":""})"));
  asked.stream->push(Delta{.choice = 0, .text = "one", .tokens = {}, .logprobs = {}});
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr(R"("delta":{"content":"one"})"));
  asked.stream->push(Delta{.choice = 0, .text = "two", .tokens = {}, .logprobs = {}});
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr(R"("delta":{"content":"two"})"));
  asked.stream->push(Finished{});
  EXPECT_THAT(client.read_until("0\r\n\r\n"),
              AllOf(HasSubstr(R"("delta":{},"logprobs":null,"finish_reason":"stop")"), HasSubstr("data: [DONE]\n\n")));
  client.send("GET /version HTTP/1.1\r\nHost: x\r\n\r\n");  // the connection is good for more
  EXPECT_THAT(client.read_answer(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ServerTest, SeveralPromptsAndChoices) {
  engine_.on_submit([](const FakeEngine::Asked& asked) {
    FakeEngine::answer(asked, std::get<engine::TextPrompt>(asked.request.prompt).text);
  });
  start();
  const std::string answer = ask(post("/v1/completions", R"({"prompt":["a","bb"],"n":2})"));
  for (const char* choice : {R"({"index":0,"text":"a")", R"({"index":1,"text":"a")", R"({"index":2,"text":"bb")",
                             R"({"index":3,"text":"bb")"}) {
    EXPECT_THAT(answer, HasSubstr(choice));
  }
  EXPECT_THAT(answer, HasSubstr(R"("prompt_tokens":6,"completion_tokens":6)"));
}

TEST_F(ServerTest, ErrorsBeforeTheFirstByteAreStatuses) {
  ErrorCode code = ErrorCode::kContextExceeded;
  engine_.on_submit([&](const FakeEngine::Asked& asked) { asked.stream->push(Failed{{code, "no", "messages"}}); });
  start();
  EXPECT_THAT(chat(kHiStream), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr(R"("code":"context_length_exceeded")")));
  code = ErrorCode::kOverloaded;
  EXPECT_THAT(chat(kHi),
              AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("Retry-After: 1\r\n"), HasSubstr("x-request-id: req-")));
  code = ErrorCode::kUnavailable;
  EXPECT_THAT(chat(kHiStream), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(chat("{\"messages\":"), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("not valid JSON")));
  EXPECT_THAT(chat(R"({"messages":[],"n":"x"})"), HasSubstr(R"("param":"n")"));
  EXPECT_EQ(engine_.n_asked(), 3u);
}

TEST_F(ServerTest, ProbesSayWhatIsWrong) {
  options_.stall_limit = std::chrono::seconds(10);
  start();
  for (const char* path : {"/livez", "/readyz"})
    EXPECT_THAT(get(path), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith(R"({"status":"ok"})"))) << path;
  RawClient head(server_->port());
  head.send("HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(head.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  engine_.set_stats({.waiting = 5, .most_waiting = 5});
  EXPECT_THAT(get("/readyz"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("5 requests are waiting")));
  EXPECT_THAT(get("/livez"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(get("/health"), StartsWith("HTTP/1.1 200 ")) << "a full queue is no fault";
  engine_.set_stats({.turn_us = 11'000'000});
  EXPECT_THAT(get("/livez"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("in one step for 11 s")));
  EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(get("/health"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Content-Length: 0\r\n")));
}

TEST_F(ServerTest, OnlySoManyCallsAtOnce) {
  options_.max_streams = 2;
  start();
  RawClient first(server_->port()), second(server_->port());
  first.send(post("/v1/chat/completions", kHiStream));
  const auto asked = next_asked(1);
  second.send(post("/v1/chat/completions", kHi));
  next_asked(2);
  const std::string refused = chat(kHiStream);
  EXPECT_THAT(refused, AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("Retry-After: "), HasSubstr("--max-streams")));
  EXPECT_THAT(get("/readyz"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("--max-streams")));
  EXPECT_EQ(engine_.n_asked(), 2u);
  second.close();
  EXPECT_TRUE(eventually([&] { return engine_.was_cancelled(2); }));
  EXPECT_TRUE(eventually([&] { return get("/readyz").starts_with("HTTP/1.1 200 "); }));
  FakeEngine::answer(asked, "x");
  first.read_until("[DONE]\n\n");
  engine_.on_submit([](const FakeEngine::Asked& one) { FakeEngine::answer(one, "hello"); });
  for (int i = 0; i < 5; ++i) EXPECT_THAT(chat(kHi), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(chat("{"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(ServerTest, WhileItStopsNewWorkIsTakenForTheDrainDelay) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "hello"); });
  options_.drain_delay = std::chrono::seconds(600);
  start();
  std::thread runner([&] { server_->run(); });
  server_->begin_stop();
  EXPECT_TRUE(eventually([&] { return get("/readyz").starts_with("HTTP/1.1 503 "); }));
  EXPECT_THAT(get("/readyz"), HasSubstr("stopping"));
  EXPECT_THAT(get("/health"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(get("/livez"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(chat(kHi), StartsWith("HTTP/1.1 200 "));
  server_->begin_stop();
  runner.join();
  EXPECT_TRUE(engine_.is_draining());
}

TEST_F(ServerTest, TheDrainLimitCutsWhatStillRuns) {
  options_.drain_limit = std::chrono::seconds(0);
  start();
  RawClient running(server_->port());
  running.send(post("/v1/chat/completions", kHiStream));
  next_asked(1).stream->push(Accepted{3});
  running.read_until("\n\n");
  server_->begin_stop();
  server_->run();
  EXPECT_TRUE(engine_.was_cancelled(1));
  EXPECT_TRUE(running.sees_close());
}

TEST_F(ServerTest, OneRefusedPromptRefusesAll) {
  engine_.on_submit([](const FakeEngine::Asked& asked) {
    asked.stream->push(Accepted{3});
    if (asked.id.value == 2) asked.stream->push(Failed{{ErrorCode::kOverloaded, "full", ""}});
  });
  start();
  EXPECT_THAT(ask(post("/v1/completions", R"({"prompt":["a","b"],"stream":true})")), StartsWith("HTTP/1.1 429 "));
  EXPECT_TRUE(eventually([&] { return engine_.was_cancelled(1); }));
}

TEST_F(ServerTest, ErrorsInAStreamAreItsLastFrame) {
  start();
  RawClient client(server_->port());
  client.send(post("/v1/chat/completions", kHiStream));
  const auto asked = next_asked(1);
  asked.stream->push(Accepted{3});
  client.read_until("\n\n");
  asked.stream->push(Failed{{ErrorCode::kInternal, "broke", ""}});
  const std::string rest = client.read_until("0\r\n\r\n");
  EXPECT_THAT(rest, HasSubstr(R"(data: {"error":{"message":"broke","type":"server_error")"));
  EXPECT_THAT(rest, Not(HasSubstr("[DONE]")));
}

TEST_F(ServerTest, CancelsForVanishedClients) {
  start();
  RawClient waiting(server_->port()), streaming(server_->port());
  waiting.send(post("/v1/chat/completions", kHi));
  next_asked(1);
  streaming.send(post("/v1/chat/completions", kHiStream));
  next_asked(2).stream->push(Accepted{3});
  streaming.read_until("\n\n");
  EXPECT_FALSE(engine_.was_cancelled(1));
  waiting.close();
  EXPECT_TRUE(eventually([&] { return engine_.was_cancelled(1); }));
  EXPECT_FALSE(engine_.was_cancelled(2));
  streaming.reset();
  EXPECT_TRUE(eventually([&] { return engine_.was_cancelled(2); }));
  engine_.asked(2).stream->push(Delta{});  // nobody listens any more
}

TEST_F(ServerTest, SlowReadersGetEverythingInTheEnd) {
  start();
  RawClient client(server_->port(), 16 * 1024);
  client.send(post("/v1/completions", R"({"prompt":"a","stream":true})"));
  const auto asked = next_asked(1);
  asked.stream->push(Accepted{3});
  const std::string piece(4000, '~');
  for (int i = 0; i < 2000; ++i) {
    asked.stream->push(Delta{.choice = 0, .text = piece, .tokens = {}, .logprobs = {}});
    if (i % 100 == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  asked.stream->push(Finished{});
  const std::string all = client.read_until("[DONE]\n\n", 20000);
  EXPECT_EQ(std::count(all.begin(), all.end(), '~'), 2000 * 4000);
}

TEST_F(ServerTest, LargeBodiesTakeTheLongWay) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "long"); });
  start();
  const std::string text(3'000'000, 'y');
  EXPECT_THAT(ask(post("/v1/completions", R"({"prompt":")" + text + R"("})")), HasSubstr(R"("text":"long")"));
  EXPECT_EQ(std::get<engine::TextPrompt>(engine_.asked(1).request.prompt).text.size(), text.size());
  EXPECT_THAT(ask(post("/v1/completions", R"({"prompt":")" + text)), StartsWith("HTTP/1.1 400 "));
  RawClient impatient(server_->port());
  impatient.send(post("/v1/completions", R"({"prompt":")" + text + R"("})"));
  impatient.reset();
}

TEST_F(ServerTest, ModelNames) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "x"); });
  options_.model_names = ModelNames::kStrict;
  start();
  EXPECT_THAT(chat(R"({"model":"tiny","messages":[{"role":"user","content":"hi"}]})"), HasSubstr(R"("model":"tiny")"));
  EXPECT_THAT(chat(kHi), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(
      chat(R"({"model":"gpt-4","messages":[{"role":"user","content":"hi"}]})"),
      AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr(R"("param":"model","code":"model_not_found")"), HasSubstr("tiny")));
  server_.reset();
  options_.model_names = ModelNames::kAny;
  start();
  EXPECT_THAT(chat(R"({"model":"gpt-4","messages":[{"role":"user","content":"hi"}]})"), HasSubstr(R"("model":"tiny")"));
  engine_.add_model("second");
  EXPECT_THAT(chat(kHi), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("tiny, second")));
}

// Answers with a report of `reused` tokens.
void answer_with_report(const FakeEngine::Asked& asked, int reused) {
  auto report = std::make_shared<engine::CacheReport>();
  report->prompt_tokens = 10;
  report->reused_tokens = reused;
  asked.stream->push(Accepted{10});
  Finished finished;
  finished.cache = std::move(report);
  asked.stream->push(std::move(finished));
}

TEST_F(ServerTest, CacheReportsByTheIdsOfTheAnswer) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { answer_with_report(asked, 7); });
  start();
  const std::string answer = chat(kHi);
  EXPECT_THAT(answer, HasSubstr("x-pagoda-cache: reused=7 copied=0 computed=3 miss=none\r\n"));
  for (const char* prefix : {"chatcmpl-", "req-"}) {
    const size_t at = answer.find(prefix);
    const std::string id = answer.substr(at, answer.find_first_not_of("0123456789abcdef", at + strlen(prefix)) - at);
    EXPECT_THAT(get("/v1/requests/" + id + "/cache"),
                AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr(R"("reused_tokens":7)")));
  }
  EXPECT_THAT(get("/v1/requests/req-0/cache"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("no cache report for req-0")));
  EXPECT_THAT(ask(post("/v1/requests/x/cache", "")), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(stream(kHiStream), HasSubstr(": x-pagoda-cache reused=7 copied=0 computed=3 miss=none\n\n"));
}

// An id that the client chose may be guessed: it opens nothing of a namespace.
TEST_F(ServerTest, OwnIdsDoNotOpenReportsOfNamespaces) {
  engine_.on_submit(
      [](const FakeEngine::Asked& asked) { answer_with_report(asked, asked.request.cache_salt.empty() ? 1 : 2); });
  start();
  const char* salted = R"({"messages":[{"role":"user","content":"hi"}],"cache_salt":"s"})";
  const std::string answer = ask(post("/v1/chat/completions", salted, "X-Request-Id: mine\r\n"));
  EXPECT_THAT(get("/v1/requests/mine/cache"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(get("/v1/requests/" + answer.substr(answer.find("chatcmpl-"), 33) + "/cache"),
              HasSubstr(R"("reused_tokens":2)"));
  ask(post("/v1/chat/completions", kHi, "X-Request-Id: mine\r\n"));
  EXPECT_THAT(get("/v1/requests/mine/cache"), HasSubstr(R"("reused_tokens":1)"));
}

TEST_F(ServerTest, WithoutReportsThereIsNoHeader) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "x"); });
  options_.reports = CacheReporting::kOff;
  start();
  EXPECT_THAT(chat(kHi), Not(HasSubstr("x-pagoda-cache")));
  EXPECT_THAT(stream(kHiStream), Not(HasSubstr("x-pagoda-cache")));
  EXPECT_THAT(get("/v1/requests/x/cache"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("--explain off")));
}

TEST_F(ServerTest, KvRoutes) {
  engine_.account.pool.budget_bytes = 4096;
  engine_.block_map.n_pages = 2;
  start();
  EXPECT_THAT(get("/v1/kv"), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr(R"("budget_bytes":4096)")));
  EXPECT_THAT(get("/v1/kv/blocks"), HasSubstr(R"("page":0,"pages":2)"));
  EXPECT_THAT(get("/v1/kv/blocks?x=&page=1"), HasSubstr(R"("page":1,"pages":2)"));
  EXPECT_THAT(get("/v1/kv/blocks?page=2"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("the map has 2")));
  for (const char* page : {"", "=", "=-1", "=1x", "=99999999999999999999999"}) {
    EXPECT_THAT(get(std::string("/v1/kv/blocks?page") + page),
                AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr(R"("param":"page")")));
  }
  EXPECT_THAT(ask(post("/v1/kv", "")), StartsWith("HTTP/1.1 405 "));
}

TEST_F(ServerTest, SessionRoutes) {
  using Verb = engine::SessionAsk::Verb;
  start();
  engine::SessionReport report;
  report.info.name = "a";
  report.info.n_tokens = 70;
  report.places = {.n_blocks = 2, .ram_blocks = 1, .ram_bytes = 512, .tier_blocks = {1}};
  report.tier_names = {"disk"};
  engine_.session_answer = report;
  EXPECT_THAT(ask(post("/v1/sessions", R"({"session_id":"a","ttl_seconds":5,"cache_salt":"s"})")),
              AllOf(StartsWith("HTTP/1.1 201 "), HasSubstr(R"("id":"a","tokens":70)"),
                    HasSubstr(R"("blocks_by_tier":{"ram":1,"disk":1,"elsewhere":0})")));
  ASSERT_EQ(engine_.session_asks.size(), 1u);
  EXPECT_EQ(engine_.session_asks[0].verb, Verb::kCreate);
  EXPECT_EQ(engine_.session_asks[0].name, "a");
  EXPECT_EQ(engine_.session_asks[0].cache_salt, "s");
  EXPECT_EQ(engine_.session_asks[0].ttl_us, 5'000'000);
  ask(post("/v1/sessions", ""));
  EXPECT_THAT(engine_.session_asks.back().name, StartsWith("sess-"));
  EXPECT_THAT(ask(post("/v1/sessions/a/fork", R"({"session_id":"b","ttl_seconds":6})", "X-Pagoda-Cache-Salt: t\r\n")),
              StartsWith("HTTP/1.1 201 "));
  EXPECT_EQ(engine_.session_asks.back().verb, Verb::kFork);
  EXPECT_EQ(engine_.session_asks.back().new_name, "b");
  EXPECT_EQ(engine_.session_asks.back().ttl_us, 6'000'000);
  EXPECT_EQ(engine_.session_asks.back().cache_salt, "t");
  EXPECT_THAT(ask(post("/v1/sessions/a/pin", "")), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(engine_.session_asks.back().verb, Verb::kPin);
  EXPECT_THAT(ask("DELETE /v1/sessions/a/pin HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(engine_.session_asks.back().verb, Verb::kUnpin);
  const auto remove = [](const char* path, const char* body) {
    return fmt::format("DELETE {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", path, strlen(body), body);
  };
  // The salt of a body was ignored: another's session went.
  for (const char* path : {"/v1/sessions/a/pin", "/v1/sessions/a"}) {
    ask(remove(path, R"({"cache_salt":"u"})"));
    EXPECT_EQ(engine_.session_asks.back().cache_salt, "u");
    EXPECT_THAT(ask(remove(path, "garbage{")), StartsWith("HTTP/1.1 400 "));
    EXPECT_EQ(engine_.session_asks.back().cache_salt, "u");
  }
  EXPECT_THAT(ask(post("/v1/sessions/a/import", "bytes")), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(engine_.session_asks.back().bytes, "bytes");
  EXPECT_THAT(get("/v1/sessions/a"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(engine_.session_asks.back().verb, Verb::kGet);
}

TEST_F(ServerTest, SessionAnswers) {
  using Verb = engine::SessionAsk::Verb;
  start();
  engine_.session_answer = engine::SessionEnded{};
  EXPECT_THAT(ask("DELETE /v1/sessions/a HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 204 "));
  EXPECT_EQ(engine_.session_asks.back().verb, Verb::kDelete);
  engine_.session_answer = engine::SessionBytes{{std::byte{'P'}}, 3};
  EXPECT_THAT(get("/v1/sessions/a/export?part=2"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("x-pagoda-parts: 3\r\n"), EndsWith("\r\n\r\nP")));
  EXPECT_EQ(engine_.session_asks.back().number, 2u);
  kv::SessionInfo info;
  info.name = "b";
  engine_.session_answer = engine::SessionPage{{info}};
  EXPECT_THAT(get("/v1/sessions?after=a%3A1&limit=7"),
              AllOf(HasSubstr(R"("data":[{"object":"session","id":"b")"), HasSubstr(R"("last":"b")")));
  EXPECT_EQ(engine_.session_asks.back().name, "a:1");
  EXPECT_EQ(engine_.session_asks.back().number, 7u);
  engine_.session_answer = pagoda::fail(Error{ErrorCode::kNotFound, "there is no session a", "session_id"});
  EXPECT_THAT(get("/v1/sessions/a"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("session_not_found")));
  engine_.session_answer = pagoda::fail(Error{ErrorCode::kNotFound, "there is no part 1", "part"});
  EXPECT_THAT(get("/v1/sessions/a/export?part=1"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("part_not_found")));
  engine_.session_answer = pagoda::fail(ErrorCode::kConflict, "8192 of at most 8192 are pinned");
  EXPECT_THAT(ask(post("/v1/sessions/a/pin", "")), AllOf(StartsWith("HTTP/1.1 409 "), HasSubstr("at most 8192")));
}

TEST_F(ServerTest, SessionRequestsThatAreWrong) {
  start();
  for (const char* body : {"[]", "{", R"({"session_id":"a/b"})", R"({"session_id":""})", R"({"ttl_seconds":0})",
                           R"({"ttl_seconds":"x"})", R"({"cache_salt":""})"}) {
    EXPECT_THAT(ask(post("/v1/sessions", body)), StartsWith("HTTP/1.1 400 ")) << body;
  }
  for (const char* route : {"/v1/sessions", "/v1/sessions/a/fork", "/v1/sessions/a/pin"}) {
    EXPECT_THAT(ask(post(route, R"({"ttl":5})")), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr(R"("param":"ttl")")));
  }
  EXPECT_THAT(ask(post("/v1/sessions/a/pin", R"({"session_id":"b"})")), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(get("/v1/sessions?limit=x"), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr(R"("param":"limit")")));
  EXPECT_THAT(ask(post("/v1/sessions/a%20b/import", "x")), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(get("/v1/sessions/a/fork"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(get("/v1/sessions/a/b"), StartsWith("HTTP/1.1 404 "));
  EXPECT_TRUE(engine_.session_asks.empty());
}

// As of Llama-2-13B in bf16.
TEST_F(ServerTest, AnImportMayBeAsLargeAsTheModelsBlocks) {
  engine_.set_session_part_bytes(27'000'000);
  start();
  EXPECT_THAT(ask(post("/v1/sessions/a/import", std::string(26'250'000, 'x'))), StartsWith("HTTP/1.1 204 "));
  ASSERT_EQ(engine_.session_asks.size(), 1u);
  EXPECT_EQ(engine_.session_asks[0].bytes.size(), 26'250'000u);
  EXPECT_THAT(ask(post("/v1/sessions/a/import", std::string(27'000'001, 'x'))), StartsWith("HTTP/1.1 413 "));
  for (const char* path : {"/v1/chat/completions", "/v1/sessions//import", "/v1/sessions/a/fork"}) {
    EXPECT_THAT(ask(post(path, std::string(17'000'000, ' '))),
                AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("16777216 bytes")))
        << path;
  }
}

TEST_F(ServerTest, CorsAndLargeBodies) {
  options_.cors_origin = "*";
  options_.max_body_bytes = 100;
  start();
  EXPECT_THAT(get("/health"), HasSubstr("Access-Control-Allow-Origin: *\r\n"));
  EXPECT_THAT(chat(std::string(200, ' ')),
              AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr(R"("type":"invalid_request_error")")));
}

TEST_F(ServerTest, SignalsDrainThenStop) {
  start();
  RawClient running(server_->port());
  running.send(post("/v1/chat/completions", kHiStream));
  const auto asked = next_asked(1);
  asked.stream->push(Accepted{3});
  running.read_until("\n\n");
  std::thread runner([&] { server_->run(); });
  std::raise(SIGTERM);
  EXPECT_TRUE(eventually([&] { return engine_.is_draining(); }));
  EXPECT_THAT(chat(kHi), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("stopping"), HasSubstr("Connection: close\r\n")));
  EXPECT_THAT(get("/health"), StartsWith("HTTP/1.1 503 "));
  FakeEngine::answer(asked, "bye");
  EXPECT_THAT(running.read_until("0\r\n\r\n"), HasSubstr("[DONE]"));
  runner.join();
  EXPECT_FALSE(RawClient(server_->port()).is_connected());
  EXPECT_FALSE(engine_.was_cancelled(1));
}

TEST_F(ServerTest, ASecondSignalCutsWhatStillRuns) {
  start();
  RawClient running(server_->port());
  running.send(post("/v1/chat/completions", kHiStream));
  next_asked(1).stream->push(Accepted{3});
  running.read_until("\n\n");
  std::thread runner([&] { server_->run(); });
  std::raise(SIGINT);
  EXPECT_TRUE(eventually([&] { return engine_.is_draining(); }));
  std::raise(SIGINT);
  runner.join();
  EXPECT_TRUE(engine_.was_cancelled(1));
  EXPECT_TRUE(running.sees_close());
}

TEST_F(ServerTest, ManyStreamsFromManyThreads) {
  std::vector<std::thread> writers;
  std::mutex mutex;
  engine_.on_submit([&](const FakeEngine::Asked& asked) {
    const std::lock_guard lock(mutex);
    writers.emplace_back(
        [asked] { FakeEngine::answer(asked, std::string(300, static_cast<char>('a' + asked.id.value % 26))); });
  });
  start();
  std::vector<std::thread> clients;
  std::atomic<int> n_right{0};
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      const bool is_stream = i % 2 == 0;
      const std::string answer = is_stream ? [&] {
        RawClient client(server_->port());
        client.send(post("/v1/chat/completions", kHiStream));
        return client.read_until("[DONE]\n\n");
      }()
                                           : chat(kHi);
      n_right += answer.find(R"("finish_reason":"stop")") != std::string::npos ? 1 : 0;
    });
  }
  for (std::thread& client : clients) client.join();
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(n_right, 16);
}

}  // namespace
}  // namespace pagoda::serve
