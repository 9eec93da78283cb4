#include "http/client.h"

#include <gmock/gmock.h>

#include "http/server.h"

namespace pagoda::http {
namespace {

using testing::HasSubstr;

TEST(HttpClient, AsksAServer) {
  Router router;
  router.add("GET", "/echo", [](HttpRequest request, Responder responder) {
    responder.send({202, "text/plain", {}, std::string(request.header("x-own"))});
  });
  HttpOptions options;
  options.port = 0;
  const auto server = HttpServer::create(options, std::move(router));
  ASSERT_TRUE(server);
  const auto url = parse_server_url((*server)->url() + "/v1/");
  ASSERT_TRUE(url);
  const auto answer = get(*url, "/echo", {{"X-Own", "hello"}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 202);
  EXPECT_EQ(answer->body, "hello");
  EXPECT_EQ(get(*url, "/nothing")->status, 404);
  (*server)->stop();
  const auto gone = get(*url, "/echo");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kIo);
  EXPECT_THAT(gone.error().message, HasSubstr("cannot connect to 127.0.0.1:"));
}

TEST(HttpClient, ASilentServerIsGivenUp) {
  Router router;
  std::vector<Responder> held;
  router.add("GET", "/hold", [&](HttpRequest, Responder responder) { held.push_back(std::move(responder)); });
  HttpOptions options;
  options.port = 0;
  const auto server = HttpServer::create(options, std::move(router));
  ASSERT_TRUE(server);
  const auto late = get(*parse_server_url((*server)->url()), "/hold", {}, std::chrono::seconds(1));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().message, HasSubstr("it took too long"));
  (*server)->stop();
}

TEST(HttpClient, Urls) {
  const auto parsed = [](const std::string& text) {
    const auto url = parse_server_url(text);
    return url ? url->host + "|" + url->port + "|" + url->prefix : std::string("-");
  };
  EXPECT_EQ(parsed("http://127.0.0.1:8000"), "127.0.0.1|8000|");
  EXPECT_EQ(parsed("localhost:9"), "localhost|9|");
  EXPECT_EQ(parsed("http://box/"), "box|80|");
  EXPECT_EQ(parsed("http://box:1/a/b/"), "box|1|/a/b");
  EXPECT_EQ(parsed("http://[::1]:8000/v1"), "::1|8000|");
  for (const char* bad : {"", "http://", "http://:1", "box:port", "box:", "https://box", "a b:1", "box:123456"})
    EXPECT_EQ(parsed(bad), "-") << bad;
}

}  // namespace
}  // namespace pagoda::http
