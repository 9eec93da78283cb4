// That what requests and answers take is counted in the server's budget, and given back.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/eventually.h"
#include "http/raw_client.h"
#include "http/server.h"

namespace pagoda::http {
namespace {

using std::chrono::milliseconds;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kBudgetBytes = 1 << 20;
constexpr int kPatienceMs = 10'000;

class HttpMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    Router router;
    router.add("GET", "/hello",
               [](HttpRequest, Responder responder) { responder.send({200, "text/plain", {}, "hi"}); });
    router.add("POST", "/size", [](HttpRequest request, Responder responder) {
      const bool is_counted = request.memory != nullptr && request.memory->bytes() >= 2 * request.body.size();
      responder.send({200, "text/plain", {}, is_counted ? std::to_string(request.body.size()) : "uncounted"});
    });
    router.add("GET", "/large", [](HttpRequest, Responder responder) {
      responder.send({200, "text/plain", {}, std::string(400'000, 'x')});
    });
    router.add("GET", "/later", [](HttpRequest, Responder responder) {
      std::thread([responder]() mutable {
        std::this_thread::sleep_for(milliseconds(200));
        responder.send({200, "text/plain", {}, "later"});
      }).detach();
    });
    options_.port = 0;
    options_.memory = &budget_;
    options_.body_copies = 2;
    options_.max_body_bytes = 252 * 1024;  // three times over, beside a connection at rest, what one may have
    options_.body_limit_hint = ", says the test";
    auto created = HttpServer::create(options_, std::move(router));
    ASSERT_TRUE(created) << created.error().message;
    server_ = std::move(*created);
  }
  // Whatever happened: all of it is given back.
  void TearDown() override {
    if (!server_) return;
    server_->stop();
    EXPECT_EQ(budget_.used_bytes(), 0u);
  }

  std::string head(size_t n_bytes) {
    return "POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(n_bytes) + "\r\n\r\n";
  }
  std::string ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);
    return client.read_answer();
  }
  // Of bodies and answers, without the connections themselves.
  bool holds_about(uint64_t bytes) {
    return eventually(
        [&] {
          const uint64_t used = budget_.used_bytes();
          return used >= bytes && used < bytes + 100'000;
        },
        kPatienceMs);
  }

  ByteBudget budget_{kBudgetBytes};
  HttpOptions options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpMemoryTest, ABodyIsReservedBeforeItIsRead) {
  RawClient first(server_->port());
  first.send(head(200'000) + "begin");
  EXPECT_TRUE(holds_about(400'000));
  RawClient second(server_->port());
  second.send(head(180'000) + "begin");
  EXPECT_TRUE(holds_about(760'000));
  const std::string refused = ask(head(100'000));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(refused, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_THAT(refused, HasSubstr("no memory for this request's body"));
  EXPECT_THAT(ask(head(1000) + std::string(1000, 'b')), EndsWith("\r\n\r\n1000")) << "small ones have their share";
  first.send(std::string(200'000 - 5, 'a'));
  EXPECT_THAT(first.read_answer(), EndsWith("\r\n\r\n200000"));
  EXPECT_THAT(ask(head(100'000) + std::string(100'000, 'c')), EndsWith("\r\n\r\n100000"));
}

TEST_F(HttpMemoryTest, WhoWaitsFor100IsRefusedBeforeItSends) {
  RawClient first(server_->port());
  first.send(head(250'000));
  EXPECT_TRUE(holds_about(500'000));
  RawClient second(server_->port());
  second.send("POST /size HTTP/1.1\r\nContent-Length: 200000\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(second.read_answer(), StartsWith("HTTP/1.1 503"));
}

TEST_F(HttpMemoryTest, ChunksAreReservedAsTheyCome) {
  RawClient endless(server_->port());
  endless.send("POST /size HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "4000\r\n" + std::string(0x4000, 'a') + "\r\n";
  endless.send(chunk);
  EXPECT_TRUE(holds_about(3 * 0x4000));
  for (int i = 0; i < 20 && endless.send(chunk); ++i) {
  }
  const std::string refused = endless.read_answer();
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(refused, HasSubstr("larger than 258048 bytes, says the test"));
  EXPECT_TRUE(holds_about(0));
  RawClient other(server_->port());
  other.send(head(250'000));
  EXPECT_TRUE(holds_about(500'000));
  RawClient second(server_->port());
  second.send("POST /size HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 10 && second.send(chunk); ++i) {
  }
  EXPECT_THAT(second.read_answer(), StartsWith("HTTP/1.1 503"));
}

TEST_F(HttpMemoryTest, AStalledBodyMakesRoom) {
  RawClient stalled(server_->port());
  stalled.send(head(250'000) + "begin");
  EXPECT_TRUE(holds_about(500'000));
  EXPECT_TRUE(eventually(
      [&] {
        std::this_thread::sleep_for(milliseconds(200));
        return ask(head(200'000) + std::string(200'000, 'b')).ends_with("\r\n\r\n200000");
      },
      kPatienceMs));
  EXPECT_THAT(stalled.read_answer(), StartsWith("HTTP/1.1 408"));
}

TEST_F(HttpMemoryTest, UnreadAnswersAreCounted) {
  std::vector<std::unique_ptr<RawClient>> readers;
  const auto all_asked = [&] {
    readers.push_back(std::make_unique<RawClient>(server_->port(), 4096));
    std::string requests;
    for (int i = 0; i < 30; ++i) requests += "GET /large HTTP/1.1\r\n\r\n";
    readers.back()->send(requests);
    std::this_thread::sleep_for(milliseconds(50));  // so that its answer is counted before there are more
    return budget_.used_bytes() > 700'000;
  };
  EXPECT_TRUE(eventually(all_asked, 50));
  EXPECT_THAT(ask("GET /large HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(ask("GET /hello HTTP/1.1\r\n\r\n"), EndsWith("hi"));
  readers.clear();
  EXPECT_TRUE(holds_about(0));
  EXPECT_THAT(ask("GET /large HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpMemoryTest, LongHeadsAreCountedAndConnectionsToo) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->send("GET /hello HTTP/1.1\r\nX: " + std::string(30'000, 'x'));
  }
  EXPECT_TRUE(eventually([&] { return budget_.used_bytes() > kBudgetBytes / 2; }, kPatienceMs));
  clients.clear();
  EXPECT_TRUE(holds_about(0));
  EXPECT_THAT(ask("GET /hello HTTP/1.1\r\nX: " + std::string(30'000, 'x') + "\r\n\r\n"), EndsWith("hi"));
}

// With more sent ahead than is kept nothing is read any more, and nothing pending held the connection.
TEST_F(HttpMemoryTest, ARunningRequestOutlivesAFloodBehindIt) {
  RawClient client(server_->port());
  std::string requests = "GET /later HTTP/1.1\r\n\r\n";
  for (int i = 0; i < 200; ++i) requests += "GET /hello HTTP/1.1\r\nX: " + std::string(500, 'x') + "\r\n\r\n";
  client.send(requests);
  EXPECT_THAT(client.read_answer(), EndsWith("later"));
  for (int i = 0; i < 200; ++i) ASSERT_THAT(client.read_answer(), EndsWith("hi")) << i;
  client.close();
  EXPECT_TRUE(eventually([&] { return server_->active_requests() == 0; }, kPatienceMs));
}

}  // namespace
}  // namespace pagoda::http
