#include "serve/monitoring.h"

#include <gmock/gmock.h>

#include "base/test_log.h"
#include "http/raw_client.h"
#include "serve/fake_engine.h"
#include "serve/server.h"

namespace pagoda::serve {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A whole server, whose log goes into a string.
class MonitoringTest : public testing::Test {
 protected:
  MonitoringTest() {
    engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "hello"); });
  }

  void start() {
    options_.port = 0;
    auto created = Server::create(engine_, options_);
    ASSERT_TRUE(created) << created.error().message;
    server_ = std::move(*created);
  }
  std::string ask(const std::string& bytes) {
    http::RawClient client(server_->port());
    client.send(bytes);
    return client.read_answer();
  }
  std::string scrape() { return ask("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); }
  std::string complete(const std::string& body) {
    return ask(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nContent-Length: {}\r\n\r\n{}",
                    body.size(), body));
  }
  // The server's log when it has ended.
  std::string log() {
    server_.reset();
    return log_.text();
  }

  TestLog log_;
  FakeEngine engine_;
  ServeOptions options_;
  std::unique_ptr<Server> server_;
};

TEST_F(MonitoringTest, ScrapesRecordsFiguresAndHttp) {
  start();
  engine_.records().steps.push({.step = 1, .prefill_rows = 12});
  complete(R"({"prompt":"hi"})");
  complete(R"({"prompt":7.5})");
  const std::string text = scrape();
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(text, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:step_rows_total{kind=\"prefill\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:requests_total{outcome=\"done\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:requests_total{outcome=\"invalid_argument\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("pagoda:http_requests_total{method=\"POST\",route=\"/v1/completions\",status=\"2xx\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("pagoda:http_requests_total{method=\"POST\",route=\"/v1/completions\",status=\"4xx\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("pagoda:sessions 0\n"));  // from the account
}

TEST_F(MonitoringTest, HeadOfMetricsHasNoBody) {
  start();
  http::RawClient client(server_->port());
  client.send("HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\n"), Not(HasSubstr("vllm:"))));
}

// An engine thread that never answers stands for one in a long step.
TEST_F(MonitoringTest, AScrapeDoesNotWaitForTheEngineThread) {
  engine_.answers_kv = false;
  start();
  EXPECT_THAT(scrape(), AllOf(HasSubstr("vllm:num_requests_running"), Not(HasSubstr("pagoda:sessions"))));
}

TEST_F(MonitoringTest, ARequestLeavesOneLineWithoutContent) {
  start();
  complete(R"({"prompt":"my secret","user":"me"})");
  const std::string text = log();
  EXPECT_THAT(text,
              HasSubstr("request id=mine route=/v1/completions model=tiny tenant=- status=200 outcome=done finish=stop "
                        "stream=false prompts=1 prompt_tokens=3 cached_tokens=0 completion_tokens=5 dropped_tokens=0 "
                        "queue_ms=0.0 prefill_ms=0.0 decode_ms=0.0 first_token_ms="));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("secret")), Not(HasSubstr("hello"))));
}

TEST_F(MonitoringTest, ARefusedRequestLeavesALineWithTheField) {
  start();
  complete(R"({"prompt":7.5})");
  EXPECT_THAT(log(),
              HasSubstr("request id=mine route=/v1/completions model=- tenant=- status=400 outcome=invalid_argument "
                        "field=prompt total_ms="));
}

TEST_F(MonitoringTest, ContentIsLoggedWhereItIsAskedFor) {
  options_.log_content = LogContent::kOn;
  start();
  complete(R"({"prompt":"my question"})");
  EXPECT_THAT(log(), HasSubstr("prompt=\"my question\" answer=hello"));
}

}  // namespace
}  // namespace pagoda::serve
