// That requests and answers are counted in what the engine's clients share: refused without room, and given back when they end.
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "base/eventually.h"
#include "http/raw_client.h"
#include "serve/fake_engine.h"
#include "serve/server.h"

namespace pagoda::serve {
namespace {

using engine::Accepted;
using engine::Delta;
using http::RawClient;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string post(const std::string& path, const std::string& body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body);
}
std::string chat_body(const std::string& content, const std::string& more = "") {
  return R"({"messages":[{"role":"user","content":")" + content + "\"}]" + more + "}";
}

Delta with_logprobs(const std::string& text) {
  Delta delta{.choice = 0, .text = text, .tokens = {TokenId(1)}, .logprobs = {}};
  delta.logprobs.resize(1);
  delta.logprobs[0].top.resize(20);
  return delta;
}

// 4 MiB of traffic: bodies up to 128 KiB, 2 MiB held.
class ServeMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    ServeOptions options;
    options.port = 0;
    auto created = Server::create(engine_, options);
    ASSERT_TRUE(created) << created.error().message;
    server_ = std::move(*created);
  }
  // What was asked is forgotten, and all of it is given back.
  void TearDown() override {
    server_.reset();
    engine_.forget();
    EXPECT_EQ(engine_.memory.held.used_bytes(), 0u);
    EXPECT_EQ(engine_.memory.work.used_bytes(), 0u);
  }
  std::string ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);
    return client.read_answer();
  }
  std::string chat(const std::string& body) { return ask(post("/v1/chat/completions", body)); }
  FakeEngine::Asked asked(uint64_t id) {
    EXPECT_TRUE(eventually([&] { return engine_.n_asked() >= id; }));
    return engine_.asked(id);
  }

  FakeEngine engine_{engine::kLeastTrafficBytes};
  std::unique_ptr<Server> server_;
};

TEST_F(ServeMemoryTest, TheLargestBodyFollowsTheLimit) {
  const std::string refused = chat(chat_body(std::string(200'000, 'a')));
  EXPECT_THAT(refused,
              AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("larger than 131072 bytes"), HasSubstr("(--memory)")));
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "hello"); });
  EXPECT_THAT(chat(chat_body(std::string(130'000, 'a'))), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ServeMemoryTest, ARequestIsCountedUntilTheEngineLetsItGo) {
  const std::string body = chat_body(std::string(100'000, 'a'));
  {
    RawClient client(server_->port());
    client.send(post("/v1/chat/completions", body));
    asked(1);
    EXPECT_TRUE(eventually([&] { return engine_.memory.held.used_bytes() > 200'000; }));
  }
  EXPECT_TRUE(eventually([&] { return engine_.was_cancelled(1); }));
  EXPECT_GT(engine_.memory.held.used_bytes(), 200'000u) << "the client is gone, but its text is not";
  engine_.forget();
  EXPECT_TRUE(eventually([&] { return engine_.memory.held.used_bytes() < 20'000; }));
}

TEST_F(ServeMemoryTest, WithoutRoomLargeRequestsGoAndSmallOnesStay) {
  std::vector<std::unique_ptr<RawClient>> clients;
  std::string answer;
  for (int i = 0; i < 32 && answer.empty(); ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->send(post("/v1/chat/completions", chat_body(std::string(100'000, 'a'))));
    answer = clients.back()->read_until("}}", 100);
  }
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1\r\n"), HasSubstr("no memory")));
  EXPECT_GT(clients.size(), 4u);
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "hello"); });
  EXPECT_THAT(chat(chat_body("hi")), StartsWith("HTTP/1.1 200 "));
}

// The model's context has 512 tokens, so each answer has so many at most.
TEST_F(ServeMemoryTest, ChoicesTimesPromptThatNeverFitAreRefused) {
  std::string prompts = "\"a\"";
  for (int i = 1; i < 256; ++i) prompts += ",\"" + std::string(400, 'a') + "\"";
  const std::string body = R"({"n":4,"prompt":[)" + prompts + "]}";
  const std::string refused = ask(post("/v1/completions", body));
  EXPECT_THAT(refused, AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("fewer choices"), HasSubstr("--memory")));
  EXPECT_EQ(engine_.n_asked(), 0u);
}

TEST_F(ServeMemoryTest, JsonOfTooManyValuesIsRefusedUnread) {
  std::string values = "[]";
  for (int i = 0; i < 40'000; ++i) values += ",[]";
  const std::string refused = chat(chat_body("hi", R"(,"other":[)" + values + "]"));
  EXPECT_THAT(refused, AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("bytes of memory to read"), HasSubstr("--memory")));
  EXPECT_EQ(engine_.n_asked(), 0u);
}

TEST_F(ServeMemoryTest, AWholeAnswerThatOutgrowsTheMemoryFails) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { asked.stream->push(Accepted{3}); });
  RawClient client(server_->port());
  client.send(post("/v1/chat/completions", chat_body("hi", R"(,"logprobs":true,"top_logprobs":20)")));
  const auto first = asked(1);
  for (int i = 0; i < 2000; ++i) {
    first.stream->push(with_logprobs("word"));
    if (i % 10 == 0) std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(client.read_answer(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("answers is used up")));
  EXPECT_TRUE(engine_.was_cancelled(1));
}

TEST_F(ServeMemoryTest, AStreamThatNobodyReadsEnds) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { asked.stream->push(Accepted{3}); });
  RawClient client(server_->port(), 4096);
  client.send(post("/v1/chat/completions", chat_body("hi", R"(,"stream":true,"logprobs":true,"top_logprobs":20)")));
  const auto first = asked(1);
  EXPECT_TRUE(eventually([&] {
    for (int i = 0; i < 20; ++i) first.stream->push(with_logprobs(std::string(500, 'w')));
    EXPECT_LE(engine_.memory.held.used_bytes(), engine_.memory.held.bytes());
    return engine_.was_cancelled(1);
  }));
  EXPECT_TRUE(first.stream->is_overrun());
  EXPECT_THAT(client.read_all(1000), HasSubstr("not read as fast as it is made"));
}

TEST_F(ServeMemoryTest, PartsOfSessionsAreReservedBeforeTheyAreMade) {
  engine_.session_answer = engine::SessionBytes{std::vector<std::byte>(100'000), 1};
  std::vector<std::unique_ptr<RawClient>> readers;
  std::string requests;
  for (int i = 0; i < 100; ++i) requests += "GET /v1/sessions/s/export HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_TRUE(eventually([&] {
    readers.push_back(std::make_unique<RawClient>(server_->port(), 4096));
    readers.back()->send(requests);
    std::this_thread::sleep_for(milliseconds(5));
    EXPECT_LE(engine_.memory.held.used_bytes(), engine_.memory.held.bytes());
    return ask("GET /v1/sessions/s/export HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 503 ");
  }));
  readers.clear();
  EXPECT_TRUE(eventually([&] { return engine_.memory.held.used_bytes() < 50'000; }));
  EXPECT_THAT(ask("GET /v1/sessions/s/export HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

}  // namespace
}  // namespace pagoda::serve
