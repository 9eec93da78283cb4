// HTTP over TLS: certificates, handshakes that fail or take for ever, and that all else is as without.
#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "base/eventually.h"
#include "base/test_folder.h"
#include "http/server.h"
#include "http/test_tls.h"
#include "http/tls_keys.h"
#include "http/transport.h"

namespace pagoda::http {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class TlsTest : public testing::Test {
 protected:
  void start() {
    router_.add("GET", "/hello",
                [](HttpRequest, Responder responder) { responder.send({200, "text/plain", {}, "hi"}); });
    router_.add("POST", "/echo", [](HttpRequest request, Responder responder) {
      responder.send({200, "text/plain", {}, request.body});
    });
    router_.add("GET", "/hold", [this](HttpRequest, Responder responder) {
      responder.on_gone([this] { ++n_gone_; });
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(responder));
    });
    options_.port = 0;
    if (!options_.tls.is_used()) options_.tls = use(make_certificate(folder_.path(), "first", 100));
    auto created = HttpServer::create(options_, std::move(router_));
    ASSERT_TRUE(created) << created.error().message;
    server_ = std::move(*created);
  }
  void TearDown() override {
    if (server_) server_->stop();
    held_.clear();
  }
  static TlsFiles use(const MadeCertificate& made) { return {made.certificate.string(), made.key.string()}; }
  Responder next_held() {
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex_);
      return !held_.empty();
    }));
    const std::lock_guard lock(mutex_);
    return held_.at(0);
  }
  std::string refusal(const TlsFiles& files) {
    const auto keys = TlsKeys::load(files);
    return keys ? "none" : keys.error().message;
  }

  TestFolder folder_;
  HttpOptions options_;
  Router router_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> n_gone_{0};
  std::mutex mutex_;
  std::vector<Responder> held_;
};

TEST_F(TlsTest, AnswersInBothVersionsAndNoOlderOne) {
  start();
  EXPECT_THAT(server_->url(), StartsWith("https://127.0.0.1:"));
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server_->port(), version);
    ASSERT_TRUE(client.is_connected()) << client.error();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(client.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"));
      EXPECT_THAT(client.read_answer(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\nhi")));
    }
    client.update_keys();
    ASSERT_TRUE(client.send("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nhi"));
    EXPECT_TRUE(client.sees_goodbye());
  }
  EXPECT_FALSE(TlsClient(server_->port(), TLS1_1_VERSION).is_connected());
}

TEST_F(TlsTest, BigBodiesBothWaysAndPipelinedRequests) {
  start();
  TlsClient client(server_->port());
  const std::string body(5'000'000, 'b');
  std::thread sender(
      [&] { client.send(fmt::format("POST /echo HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.size()) + body); });
  sender.join();
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\n" + body));
  std::string requests;
  for (int i = 0; i < 300; ++i) requests += "GET /hello HTTP/1.1\r\nX: " + std::string(200, 'x') + "\r\n\r\n";
  client.send(requests);
  for (int i = 0; i < 300; ++i) ASSERT_THAT(client.read_answer(), EndsWith("\r\n\r\nhi")) << i;
}

// A record that is read in parts: what is left of it is in no socket any more.
TEST_F(TlsTest, ARecordLongerThanWhatIsKeptIsReadWhole) {
  start();
  TlsClient client(server_->port());
  std::string requests = "GET /hold HTTP/1.1\r\n\r\n";
  for (int i = 0; i < 150; ++i) requests += "GET /hello HTTP/1.1\r\nX: " + std::string(60, 'x') + "\r\n\r\n";
  ASSERT_LT(requests.size(), 16'384u);
  client.send(requests);
  next_held().send({200, "text/plain", {}, "held"});
  EXPECT_THAT(client.read_answer(), EndsWith("held"));
  for (int i = 0; i < 150; ++i) ASSERT_THAT(client.read_answer(), EndsWith("\r\n\r\nhi")) << i;
}

TEST_F(TlsTest, SlowReadersAreBoundedAndGetEverything) {
  start();
  TlsClient client(server_->port(), 0, 4096);
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  Responder responder = next_held();
  responder.open_stream({});
  const std::string chunk(16 * 1024, 'x');
  size_t n_chunks = 0;
  while (responder.write(chunk) != Room::kFull && ++n_chunks < 4000) {
  }
  ASSERT_LT(n_chunks, 4000u) << "never full";
  responder.write("the end");
  responder.close();
  EXPECT_GE(client.read_until("0\r\n\r\n").size(), n_chunks * chunk.size());
}

TEST_F(TlsTest, TellsWhenAClientVanishes) {
  start();
  auto fin = std::make_unique<TlsClient>(server_->port());
  fin->send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  next_held();
  fin.reset();
  EXPECT_TRUE(eventually([&] { return n_gone_ == 1; }));
  TlsClient rst(server_->port());
  rst.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return server_->active_requests() == 1; }));
  rst.raw().reset();
  EXPECT_TRUE(eventually([&] { return n_gone_ == 2; }));
  EXPECT_TRUE(eventually([&] { return server_->active_requests() == 0; }));
}

TEST_F(TlsTest, PlainHttpAndGarbageAreTurnedAway) {
  start();
  RawClient plain(server_->port());
  plain.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(plain.read_answer(), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("https://")));
  EXPECT_TRUE(plain.sees_close());
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x02garbage"), std::string(20'000, '\xff'), std::string(3, '\0')}) {
    RawClient garbage(server_->port());
    garbage.send(bytes);
    garbage.shutdown_send();
    EXPECT_TRUE(garbage.sees_close());
  }
  TlsClient broken(server_->port());
  broken.raw().send("\x17\x03\x03\x00\x20 this is no record of this key");
  broken.raw().send(std::string(100, 'x'));
  EXPECT_TRUE(broken.raw().sees_close());
  TlsClient client(server_->port());
  client.send("GET /hello HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.read_answer(), EndsWith("hi"));
}

TEST_F(TlsTest, HandshakesThatDoNotEndAreEnded) {
  options_.handshake_timeout = milliseconds(100);
  start();
  RawClient silent(server_->port()), slow(server_->port());
  const std::string begin("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9);
  for (const char c : begin) slow.send(std::string(1, c));
  EXPECT_TRUE(silent.sees_close());
  EXPECT_TRUE(slow.sees_close());
  TlsClient client(server_->port());
  std::this_thread::sleep_for(milliseconds(250));  // its own time is another
  client.send("GET /hello HTTP/1.1\r\n\r\n");
  EXPECT_THAT(client.read_answer(), EndsWith("hi"));
}

TEST_F(TlsTest, WhatTlsHoldsIsCounted) {
  ByteBudget budget{uint64_t{8} << 20};
  options_.memory = &budget;
  start();
  const auto uses = [&](uint64_t bytes) { return eventually([&] { return budget.used_bytes() == bytes; }); };
  constexpr uint64_t kRest = 24 * 1024;
  {
    TlsClient client(server_->port());
    EXPECT_TRUE(uses(kRest));
    RawClient silent(server_->port());
    EXPECT_TRUE(uses(2 * kRest + Transport::kHandshakeBytes));
    client.raw().send(std::string("\x17\x03\x03\x40\x00 half a record", 19));
    EXPECT_TRUE(uses(2 * kRest + Transport::kHandshakeBytes + Transport::kRecordBytes));
  }
  EXPECT_TRUE(uses(0));
  server_->stop();
}

TEST_F(TlsTest, TooManyConnectionsAreToldByAnAlert) {
  options_.max_connections = 1;
  start();
  TlsClient first(server_->port());
  ASSERT_TRUE(first.is_connected());
  EXPECT_THAT(TlsClient(server_->port()).error(), HasSubstr("internal error"));
}

TEST_F(TlsTest, ARenewedCertificateIsTakenWithoutARestart) {
  options_.tls_check_every = milliseconds(10);
  start();
  TlsClient old(server_->port());
  EXPECT_EQ(old.server_name(), "first");
  const MadeCertificate renewed = make_certificate(folder_.path(), "second", 200);
  std::filesystem::rename(renewed.certificate, options_.tls.certificate);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(TlsClient(server_->port()).server_name(), "first") << "its key is not there yet";
  std::filesystem::rename(renewed.key, options_.tls.key);
  EXPECT_TRUE(eventually([&] { return TlsClient(server_->port()).server_name() == "second"; }));
  old.send("GET /hello HTTP/1.1\r\n\r\n");
  EXPECT_THAT(old.read_answer(), EndsWith("hi"));
}

TEST_F(TlsTest, FilesThatAreWrongAreNamed) {
  const MadeCertificate good = make_certificate(folder_.path(), "good", 1);
  const MadeCertificate other = make_certificate(folder_.path(), "other", 1);
  const std::string text = (folder_.path() / "text").string(), empty = (folder_.path() / "empty").string();
  std::ofstream(text) << "not PEM\n";
  std::ofstream{empty};
  const std::string absent = (folder_.path() / "absent").string();
  const std::string certificate = good.certificate.string(), key = good.key.string();
  EXPECT_EQ(refusal({certificate, key}), "none");
  EXPECT_EQ(refusal({absent, key}), absent + ": No such file or directory");
  EXPECT_EQ(refusal({certificate, absent}), absent + ": No such file or directory");
  EXPECT_THAT(refusal({folder_.path().string(), key}), HasSubstr("Is a directory"));
  EXPECT_EQ(refusal({empty, key}), empty + ": the file is empty");
  EXPECT_EQ(refusal({text, key}), text + ": there is no certificate in PEM in it");
  EXPECT_EQ(refusal({key, key}), key + ": there is no certificate in PEM in it");
  EXPECT_EQ(refusal({certificate, text}), text + ": there is no private key in PEM in it");
  EXPECT_EQ(refusal({certificate, certificate}), certificate + ": there is no private key in PEM in it");
  EXPECT_EQ(refusal({certificate, other.key.string()}),
            other.key.string() + ": the key does not belong to the certificate in " + certificate);
}

TEST_F(TlsTest, AnExpiredCertificateIsServedWithAWarning) {
  options_.tls = use(make_certificate(folder_.path(), "expired", -1));
  start();
  EXPECT_EQ(TlsClient(server_->port()).server_name(), "expired");
}

TEST_F(TlsTest, PlainServersRefuseTlsAtOnce) {
  options_.port = 0;
  auto created = HttpServer::create(options_, {});
  ASSERT_TRUE(created);
  TlsClient client((*created)->port());
  EXPECT_FALSE(client.is_connected());
  EXPECT_THAT(client.error(), HasSubstr("wrong version number"));
}

TEST_F(TlsTest, DrainsAndStops) {
  start();
  TlsClient idle(server_->port()), busy(server_->port());
  idle.send("GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  idle.read_answer();
  busy.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  Responder responder = next_held();
  server_->drain();
  EXPECT_TRUE(idle.sees_goodbye());
  responder.send({200, "text/plain", {}, "finished"});
  EXPECT_THAT(busy.read_answer(), EndsWith("finished"));
  EXPECT_TRUE(busy.sees_goodbye());
}

}  // namespace
}  // namespace pagoda::http
