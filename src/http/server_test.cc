#include "http/server.h"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "base/eventually.h"
#include "http/raw_client.h"
#include "http/turned_away.h"

namespace pagoda::http {
namespace {

using std::chrono::milliseconds;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class HttpServerTest : public testing::Test {
 protected:
  void start() {
    router_.add("GET", "/hello",
                [](HttpRequest, Responder responder) { responder.send({200, "text/plain", {}, "hi"}); });
    router_.add("POST", "/echo", [](HttpRequest request, Responder responder) {
      responder.send({200, "text/plain", {}, request.body});
    });
    router_.add("GET", "/items/{id}", [](HttpRequest request, Responder responder) {
      responder.send({200, "text/plain", {}, std::string(request.path_value("id"))});
    });
    router_.add("GET", "/later", [](HttpRequest, Responder responder) {
      std::thread([responder]() mutable {
        std::this_thread::sleep_for(milliseconds(30));
        responder.send({200, "text/plain", {}, "later"});
      }).detach();
    });
    router_.add("GET", "/dropped", [](HttpRequest, Responder) {});
    router_.add("GET", "/stream", [](HttpRequest, Responder responder) {
      responder.open_stream({200, "text/event-stream", {}, "", milliseconds(0)});
      responder.write("data: 1\n\n");
      responder.write("data: 2\n\n");
      responder.close();
    });
    router_.add("GET", "/hold", [this](HttpRequest, Responder responder) {
      responder.on_gone([this] { ++n_gone_; });
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(responder));
    });
    options_.port = 0;
    auto created = HttpServer::create(options_, std::move(router_));
    ASSERT_TRUE(created) << created.error().message;
    server_ = std::move(*created);
  }
  void TearDown() override {
    if (server_) server_->stop();
    held_.clear();
  }

  size_t n_held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  Responder held(size_t i) {
    const std::lock_guard lock(mutex_);
    return held_.at(i);
  }
  std::string ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);
    return client.read_answer();
  }

  HttpOptions options_;
  Router router_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> n_gone_{0};
  std::mutex mutex_;
  std::vector<Responder> held_;
};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  start();
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string answer = client.read_answer();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Length: 2\r\n"));
    EXPECT_THAT(answer, EndsWith("\r\n\r\nhi"));
  }
  EXPECT_TRUE(eventually([&] { return server_->active_requests() == 0; }));
}

TEST_F(HttpServerTest, TakesBytesOneByOne) {
  start();
  RawClient client(server_->port());
  for (const char c : std::string("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")) {
    client.send(std::string(1, c));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nhello"));
  for (const char c : std::string("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")) {
    client.send(std::string(1, c));
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nhi"));
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  start();
  RawClient client(server_->port());
  client.send(
      "GET /later HTTP/1.1\r\nHost: x\r\n\r\nGET /items/1 HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
      "GET /items/2 HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_answer(), EndsWith("later"));
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\n1"));
  EXPECT_THAT(client.read_answer(), EndsWith("abc"));
  EXPECT_THAT(client.read_until("0\r\n\r\n"), HasSubstr("data: 2"));
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\n2"));
}

TEST_F(HttpServerTest, AnswersManyPipelinedRequestsOfAClientThatStoppedSending) {
  start();
  RawClient client(server_->port());
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
  std::thread sender([&] {
    client.send(bytes);
    client.shutdown_send();
  });
  const std::string answers = client.read_all();
  sender.join();
  size_t n = 0;
  for (size_t at = answers.find("HTTP/1.1 200"); at != std::string::npos; at = answers.find("HTTP/1.1 200", at + 1))
    ++n;
  EXPECT_EQ(n, 5000u);
}

TEST_F(HttpServerTest, JoinsChunkedBodies) {
  start();
  EXPECT_THAT(
      ask("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"),
      EndsWith("\r\n\r\nabcdefg"));
}

TEST_F(HttpServerTest, RefusesLargeBodiesButStillAnswers) {
  options_.max_body_bytes = 1000;
  start();
  RawClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n");
  client.send(std::string(3'000'000, 'x'));  // sent whole before reading, as most clients do
  const std::string answer = client.read_answer();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, HasSubstr("1000 bytes"));
  std::string chunks = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 100; ++i) chunks += "10\r\n0123456789abcdef\r\n";
  EXPECT_THAT(ask(chunks), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;" + std::string(100'000, 'x')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'y')),
              EndsWith("yyyy"));
}

TEST_F(HttpServerTest, OneRouteMayTakeLargerBodies) {
  options_.max_body_bytes = 1000;
  options_.large_bodies = {
      100'000, [](std::string_view method, std::string_view path) { return method == "POST" && path == "/echo"; }};
  start();
  const auto post = [&](std::string_view target, size_t n) {
    return ask(
        fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}", target, n, std::string(n, 'y')));
  };
  EXPECT_THAT(post("/echo?a=b", 100'000), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("yyyy")));
  EXPECT_THAT(post("/echo", 100'001), AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("100000 bytes")));
  EXPECT_THAT(post("/other", 1001), AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("larger than 1000 bytes")));
  EXPECT_THAT(post("/other", 200'000), AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("larger than 1000 bytes")));
  EXPECT_THAT(post("/other", 1000), StartsWith("HTTP/1.1 404 "));
  for (const char* target : {"/echo", "/other"}) {
    std::string chunks = fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", target);
    for (int i = 0; i < 100; ++i) chunks += "10\r\n0123456789abcdef\r\n";
    chunks += "0\r\n\r\n";
    EXPECT_THAT(ask(chunks), StartsWith(target == std::string("/echo") ? "HTTP/1.1 200 " : "HTTP/1.1 413 "));
  }
}

TEST_F(HttpServerTest, AGateAnswersInsteadOfHandlers) {
  std::vector<size_t> bodies;
  options_.gate = [&](const HttpRequest& request) -> std::optional<HttpResponse> {
    bodies.push_back(request.body.size());
    if (request.header("x-key") == "yes") return std::nullopt;
    return HttpResponse{401, "text/plain", {}, "no"};
  };
  start();
  const auto post = [](std::string_view headers, size_t length, size_t n_sent) {
    return fmt::format("POST /echo HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", headers, length,
                       std::string(n_sent, 'y'));
  };
  EXPECT_THAT(ask(post("X-Key: yes\r\n", 100'000, 100'000)), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("yyyy")));
  EXPECT_EQ(bodies, (std::vector<size_t>{0, 100'000}));  // its head, then all of it
  EXPECT_THAT(ask(post("", 100'000, 1)), AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("Connection: close\r\n")));
  EXPECT_THAT(ask(post("Expect: 100-continue\r\n", 100'000, 0)), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(ask(post("", 100, 100)), AllOf(StartsWith("HTTP/1.1 401 "), Not(HasSubstr("Connection: close\r\n"))));
  EXPECT_THAT(ask("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(ask("GET /nowhere HTTP/1.1\r\nHost: x\r\nX-Key: yes\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(HttpServerTest, RefusesWhatIsNotHttp) {
  start();
  EXPECT_THAT(ask("\x16\x03\x01\x02garbage\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask("GET /hello HTTP/1.1\r\nHost x\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask("GET /hello HTTP/3.7\r\n\r\n"), StartsWith("HTTP/1.1 505 "));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"),
              StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 400 "));
  for (const std::string coding : {"gzip", "identity"}) {
    const std::string head = "POST /echo HTTP/1.1\r\nTransfer-Encoding: " + coding + "\r\n\r\n";
    const std::string answer = ask(head + "GET /hello HTTP/1.1\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 501 "));
    EXPECT_THAT(answer, Not(HasSubstr("200 OK")));  // the body is not the next request
  }
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
              StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(ask("GET /hello HTTP/1.1\r\nX: " + std::string(40'000, 'x') + "\r\n\r\n"), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, UnknownPathsAndMethods) {
  start();
  EXPECT_THAT(ask("GET /nothing HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  const std::string answer = ask("DELETE /hello HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD, OPTIONS\r\n"));
  EXPECT_THAT(ask("GET /items/a%2Fb HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\na/b"));
  EXPECT_THAT(ask("GET http://x:1/hello?q=1 HTTP/1.1\r\n\r\n"), EndsWith("hi"));
  EXPECT_THAT(ask("GET /dropped HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 500 "));
}

TEST_F(HttpServerTest, CountsAnswersByRouteAndClass) {
  start();
  for (const char* id : {"1", "2"}) ask(fmt::format("GET /items/{} HTTP/1.1\r\nHost: x\r\n\r\n", id));
  ask("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  ask("GET /dropped HTTP/1.1\r\nHost: x\r\n\r\n");
  ask("GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n");
  ask("nonsense\r\n\r\n");
  {
    RawClient client(server_->port());
    client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    ASSERT_TRUE(eventually([&] { return n_held() == 1; }));
    EXPECT_GE(server_->stats().active_requests, 1u);
  }
  ASSERT_TRUE(eventually([&] { return n_gone_ == 1; }));
  const HttpStats stats = server_->stats();
  std::map<std::string, std::array<uint64_t, 6>> by_route;
  for (const HttpStats::Route& route : stats.routes) by_route[route.name.pattern] = route.by_class;
  EXPECT_THAT(by_route.at("/items/{id}"), testing::ElementsAre(0, 0, 2, 0, 0, 0));
  EXPECT_THAT(by_route.at("/hello"), testing::ElementsAre(0, 0, 1, 0, 0, 0));
  EXPECT_THAT(by_route.at("/dropped"), testing::ElementsAre(0, 0, 0, 0, 0, 1));
  EXPECT_THAT(by_route.at("/hold"), testing::ElementsAre(1, 0, 0, 0, 0, 0));
  EXPECT_THAT(by_route.at(""), testing::ElementsAre(0, 0, 0, 0, 2, 0));
  EXPECT_EQ(stats.accepted, 7u);
  EXPECT_EQ(stats.turned_away, 0u);
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  RawClient client(server_->port());
  client.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /items/7 HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 2\r\n"));
  EXPECT_THAT(client.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(client.read_until("7"), "7");
}

TEST_F(HttpServerTest, IgnoresUpgradeAndAnswersExpect) {
  start();
  EXPECT_THAT(ask("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                  "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nContent-Length: 2\r\n\r\nok"),
              EndsWith("\r\n\r\nok"));
  RawClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("body");
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nbody"));
}

TEST_F(HttpServerTest, CorsHeadersAndPreflight) {
  options_.cors_origin = "https://app.example";
  start();
  EXPECT_THAT(ask("GET /hello HTTP/1.1\r\n\r\n"), HasSubstr("Access-Control-Allow-Origin: https://app.example\r\n"));
  const std::string preflight =
      ask("OPTIONS /echo HTTP/1.1\r\nOrigin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
          "Access-Control-Request-Headers: authorization, content-type\r\n\r\n");
  EXPECT_THAT(preflight, StartsWith("HTTP/1.1 204 "));
  EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Methods: POST, OPTIONS\r\n"));
  EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Headers: authorization, content-type\r\n"));
}

TEST_F(HttpServerTest, StreamsInChunksAndToOldClientsUntilClose) {
  start();
  RawClient client(server_->port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string answer = client.read_until("0\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(answer, EndsWith("9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"));
  RawClient old(server_->port());
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old.read_all(), EndsWith("\r\n\r\ndata: 1\n\ndata: 2\n\n"));
}

TEST_F(HttpServerTest, WritesKeepaliveWhenNothingElseIsWritten) {
  router_.add("GET", "/quiet", [this](HttpRequest, Responder responder) {
    responder.open_stream({200, "text/event-stream", {}, ": ping\n\n", milliseconds(20)});
    responder.write("data: 1\n\n");
    const std::lock_guard lock(mutex_);
    held_.push_back(responder);
  });
  start();
  RawClient client(server_->port());
  client.send("GET /quiet HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.read_until(": ping\n\n"), HasSubstr("data: 1"));
  EXPECT_THAT(client.read_until(": ping\n\n"), Not(HasSubstr("data: 1")));
  held(0).close();
  EXPECT_THAT(client.read_until("0\r\n\r\n"), EndsWith("0\r\n\r\n"));
}

TEST_F(HttpServerTest, TellsAtOnceWhenAClientVanishes) {
  start();
  RawClient fin(server_->port()), rst(server_->port()), stream(server_->port());
  for (RawClient* client : {&fin, &rst, &stream}) client->send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return n_held() == 3; }));
  EXPECT_EQ(server_->active_requests(), 3u);
  fin.close();
  EXPECT_TRUE(eventually([&] { return n_gone_ == 1; }, 500));
  rst.reset();
  EXPECT_TRUE(eventually([&] { return n_gone_ == 2; }, 500));
  stream.close();
  EXPECT_TRUE(eventually([&] { return n_gone_ == 3; }, 500));
  EXPECT_TRUE(eventually([&] { return server_->active_requests() == 0; }));
  held(0).send({200, "text/plain", {}, "too late"});
  EXPECT_EQ(held(1).write("x"), Room::kGone);
}

TEST_F(HttpServerTest, BoundsWhatASlowReaderLeavesUnread) {
  start();
  RawClient client(server_->port(), 4096);
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return n_held() == 1; }));
  Responder responder = held(0);
  std::atomic<int> n_drained{0};
  responder.on_drained([&] { ++n_drained; });
  responder.open_stream({});
  const std::string chunk(16 * 1024, 'x');
  size_t n_chunks = 0;
  for (; n_chunks < 4000; ++n_chunks) {
    if (responder.write(chunk) == Room::kFull) {
      std::this_thread::sleep_for(milliseconds(20));  // what the kernel still takes
      if (n_drained.exchange(0) == 0) break;
    }
  }
  ASSERT_LT(n_chunks, 4000u) << "never full";
  responder.write("the end");
  responder.close();
  const std::string all = client.read_until("0\r\n\r\n");
  EXPECT_GE(all.size(), n_chunks * chunk.size());
  EXPECT_THAT(all, EndsWith("7\r\nthe end\r\n0\r\n\r\n"));
}

TEST_F(HttpServerTest, CallsBackWhenASlowReaderHasCaughtUp) {
  start();
  RawClient client(server_->port(), 128 * 1024);
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return n_held() == 1; }));
  Responder responder = held(0);
  std::atomic<int> n_drained{0};
  responder.on_drained([&] { ++n_drained; });
  responder.open_stream({});
  EXPECT_EQ(responder.write(std::string(12 * 1024 * 1024, 'x')), Room::kFull);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(n_drained, 0);
  std::thread reader([&] { client.read_until("done"); });
  EXPECT_TRUE(eventually([&] { return n_drained == 1; }));
  responder.write("done");
  reader.join();
  responder.close();
}

TEST_F(HttpServerTest, GivesUpOnSlowRequests) {
  options_.head_timeout = milliseconds(60);
  options_.body_timeout = milliseconds(60);
  options_.idle_timeout = milliseconds(60);
  start();
  RawClient slow_head(server_->port()), slow_body(server_->port()), silent(server_->port());
  slow_head.send("GET /hello HTT");
  slow_body.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(slow_head.read_answer(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(slow_body.read_answer(), StartsWith("HTTP/1.1 408 "));
  EXPECT_TRUE(slow_head.sees_close());
  EXPECT_TRUE(silent.sees_close());
}

// One half-sent body held a stop for a minute.
TEST_F(HttpServerTest, ADrainDoesNotWaitForHalfARequest) {
  options_.drain_timeout = milliseconds(60);
  start();
  RawClient head(server_->port()), body(server_->port()), chunk(server_->port());
  head.send("GET /hello HTT");
  body.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  chunk.send("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
  EXPECT_TRUE(eventually([&] { return server_->active_requests() >= 2; }));
  server_->drain();
  for (RawClient* client : {&head, &body, &chunk}) {
    client->read_answer();
    EXPECT_TRUE(client->sees_close());
  }
  EXPECT_TRUE(eventually([&] { return server_->active_requests() == 0; }));
}

TEST_F(HttpServerTest, DripFedHeadsHitTheirDeadline) {
  options_.head_timeout = milliseconds(80);
  start();
  RawClient client(server_->port());
  client.send("GET /hello HTTP/1.1\r\n");
  for (int i = 0; i < 20 && client.send("X: y\r\n"); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_THAT(client.read_answer(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, TurnsAwayTooManyConnections) {
  options_.max_connections = 2;
  start();
  RawClient a(server_->port()), b(server_->port());
  a.send("GET /hold HTTP/1.1\r\n\r\n");
  b.send("GET /hold HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return n_held() == 2; }));
  RawClient c(server_->port());
  EXPECT_THAT(c.read_answer(), StartsWith("HTTP/1.1 503 "));
  a.close();
  ASSERT_TRUE(eventually([&] { return n_gone_ == 1; }));
  EXPECT_THAT(ask("GET /hello HTTP/1.1\r\n\r\n"), EndsWith("hi"));
}

// Its client sends on in peace, reads the answer then, and is not reset before.
TEST_F(HttpServerTest, WhoIsTurnedAwayMayFinishSending) {
  options_.max_connections = 1;
  start();
  RawClient a(server_->port());
  a.send("GET /hold HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return n_held() == 1; }));
  for (int i = 0; i < 100; ++i) {
    RawClient late(server_->port());
    ASSERT_TRUE(late.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"));
    if (i == 0) std::this_thread::sleep_for(milliseconds(50));
    for (int part = 0; part < 10; ++part) ASSERT_TRUE(late.send(std::string(10'000, 'x'))) << i << "," << part;
    ASSERT_THAT(late.read_answer(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too many connections"))) << i;
  }
}

TEST_F(HttpServerTest, WhoIsTurnedAwayCannotStay) {
  options_.max_connections = 0;
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (size_t i = 0; i < 2 * TurnedAway::kMost; ++i) clients.push_back(std::make_unique<RawClient>(server_->port()));
  for (const auto& client : clients) EXPECT_TRUE(eventually([&] { return !client->send("x"); }));
}

TEST_F(HttpServerTest, DrainsAndStops) {
  start();
  RawClient idle(server_->port()), busy(server_->port()), cut(server_->port());
  idle.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  idle.read_answer();
  busy.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  cut.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return n_held() == 2; }));
  server_->drain();
  EXPECT_TRUE(idle.sees_close());
  EXPECT_THAT(ask("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"), HasSubstr("Connection: close\r\n"));
  held(0).send({200, "text/plain", {}, "finished"});
  held(1).send({200, "text/plain", {}, "finished"});
  const std::string answer = busy.read_answer();
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, EndsWith("finished"));
  EXPECT_TRUE(busy.sees_close());
  EXPECT_TRUE(eventually([&] { return server_->active_requests() == 0; }));
  server_->stop();
  EXPECT_FALSE(RawClient(server_->port()).is_connected());
}

// Its first request may be on its way: a new connection that is closed without an answer looks like a dead server.
TEST_F(HttpServerTest, DrainingAnswersAConnectionThatAskedNothingYet) {
  start();
  RawClient fresh(server_->port());
  ASSERT_TRUE(eventually([&] { return fresh.is_connected(); }));
  ask("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");  // accepted after it
  server_->drain();
  fresh.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(fresh.read_answer(), EndsWith("hi"));
  EXPECT_TRUE(fresh.sees_close());
}

TEST_F(HttpServerTest, StopCutsRunningRequests) {
  start();
  RawClient client(server_->port());
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return n_held() == 1; }));
  server_->stop();
  EXPECT_EQ(n_gone_, 1);
  EXPECT_TRUE(client.sees_close());
}

TEST_F(HttpServerTest, NamesTheWayOutOfAnAddressInUse) {
  start();
  HttpOptions same;
  same.port = server_->port();
  const auto second = HttpServer::create(same, {});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("in use"));
  EXPECT_THAT(second.error().message, HasSubstr("--port"));
  HttpOptions elsewhere;
  elsewhere.host = "192.0.2.1";
  const auto third = HttpServer::create(elsewhere, {});
  ASSERT_FALSE(third);
  EXPECT_THAT(third.error().message, HasSubstr("--host"));
}

}  // namespace
}  // namespace pagoda::http
