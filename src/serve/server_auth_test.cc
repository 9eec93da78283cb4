// Keys and limits over HTTP.
#include <gmock/gmock.h>

#include <cstring>
#include <fstream>

#include "base/eventually.h"
#include "base/test_folder.h"
#include "http/raw_client.h"
#include "serve/fake_engine.h"
#include "serve/key_file.h"
#include "serve/server.h"

namespace pagoda::serve {
namespace {

using engine::Accepted;
using http::RawClient;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kHi = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":4})";

class ServerAuthTest : public testing::Test {
 protected:
  void start(const std::vector<Tenant>& tenants) {
    std::ofstream(file_) << key_file_json(tenants);
    options_.port = 0;
    options_.auth.key_file = file_;
    auto created = Server::create(engine_, options_);
    ASSERT_TRUE(created) << created.error().to_string();
    server_ = std::move(*created);
  }
  static Tenant tenant_of(const std::string& name, TenantLimits limits = {}) {
    return {.name = name, .keys = {key_digest("key-" + name)}, .limits = std::move(limits)};
  }
  static std::string headers_of(const std::string& tenant) {
    return "Host: x\r\n" + (tenant.empty() ? "" : "Authorization: Bearer key-" + tenant + "\r\n");
  }
  static std::string post(const std::string& path, const std::string& body, const std::string& tenant) {
    return fmt::format("POST {} HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{}", path, headers_of(tenant), body.size(),
                       body);
  }
  std::string ask(const std::string& bytes) {
    RawClient client(server_->port());
    client.send(bytes);
    return client.read_answer();
  }
  std::string get(const std::string& path, const std::string& tenant) {
    return ask("GET " + path + " HTTP/1.1\r\n" + headers_of(tenant) + "\r\n");
  }
  std::string chat(const std::string& tenant, const std::string& body = kHi) {
    return ask(post("/v1/chat/completions", body, tenant));
  }
  FakeEngine::Asked next_asked(uint64_t id) {
    EXPECT_TRUE(eventually([&] { return engine_.n_asked() >= id; }));
    return engine_.asked(id);
  }

  TestFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "keys.json";
  FakeEngine engine_;
  ServeOptions options_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerAuthTest, NobodyIsLetInWithoutAKey) {
  start({tenant_of("alice")});
  for (const char* path : {"/", "/health", "/ping", "/version"})
    EXPECT_THAT(get(path, ""), StartsWith("HTTP/1.1 200 "));
  for (const char* path : {"/v1/models", "/v1/models/tiny", "/v1/engine", "/v1/kv", "/v1/sessions", "/v1/none"}) {
    EXPECT_THAT(get(path, ""),
                AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("WWW-Authenticate: Bearer\r\n"),
                      HasSubstr(R"("type":"authentication_error")"), HasSubstr(R"("code":"invalid_api_key")")));
  }
  EXPECT_THAT(chat("nobody"), AllOf(StartsWith("HTTP/1.1 401 "), Not(HasSubstr("key-nobody"))));
  EXPECT_EQ(engine_.n_asked(), 0u);
  EXPECT_THAT(get("/v1/models", "alice"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(get("/v1/none", "alice"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(get("/v1/engine", "alice"),
              AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr(R"("type":"permission_error")")));
}

// 10 MB that nobody may send are not waited for.
TEST_F(ServerAuthTest, ALongBodyIsRefusedBeforeItComes) {
  start({tenant_of("alice")});
  EXPECT_THAT(ask("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n{"),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("Connection: close\r\n")));
  RawClient client(server_->port());  // a short one is taken, and the connection goes on
  client.send(post("/v1/completions", "{}", ""));
  EXPECT_THAT(client.read_answer(), StartsWith("HTTP/1.1 401 "));
  client.send("GET /v1/models HTTP/1.1\r\n" + headers_of("alice") + "\r\n");
  EXPECT_THAT(client.read_answer(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(ServerAuthTest, RequestsCarryTheirTenant) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "x"); });
  Tenant alice = tenant_of("alice", {.context_tokens = 100});
  alice.weight = 5;
  alice.priority = -1;
  alice.cache_space = "team";
  start({alice});
  EXPECT_THAT(chat("alice"), StartsWith("HTTP/1.1 200 "));
  const engine::Request request = engine_.asked(1).request;
  EXPECT_EQ(request.tenant, "alice");
  EXPECT_EQ(request.cache_space, "team");
  EXPECT_EQ(request.share.weight, 5);
  EXPECT_EQ(request.share.priority, -1);
  EXPECT_EQ(request.context_tokens, 100);
  ask(post("/v1/sessions", R"({"session_id":"s"})", "alice"));
  get("/v1/sessions", "alice");
  for (const engine::SessionAsk& asked : engine_.session_asks) {
    EXPECT_EQ(asked.tenant, "alice");
    EXPECT_EQ(asked.cache_space, "team");
  }
  EXPECT_EQ(engine_.session_asks.size(), 2u);
}

TEST_F(ServerAuthTest, ModelsThatAreNotAllowed) {
  engine_.add_model("other");
  start({tenant_of("alice", {.models = {"other"}}), tenant_of("bob")});
  EXPECT_THAT(chat("alice", R"({"model":"tiny","messages":[{"role":"user","content":"hi"}]})"),
              AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr(R"("type":"permission_error","param":"model")")));
  EXPECT_EQ(engine_.n_asked(), 0u);
  EXPECT_THAT(get("/v1/models", "alice"), AllOf(HasSubstr(R"("id":"other")"), Not(HasSubstr(R"("id":"tiny")"))));
  EXPECT_THAT(get("/v1/models/tiny", "alice"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(get("/v1/models", "bob"), AllOf(HasSubstr(R"("id":"other")"), HasSubstr(R"("id":"tiny")")));
}

TEST_F(ServerAuthTest, LimitsAreCountedFromRequestToAnswer) {
  start({tenant_of("alice", {.most_concurrent = 1}), tenant_of("bob")});
  RawClient first(server_->port());
  first.send(post("/v1/chat/completions", kHi, "alice"));
  const auto asked = next_asked(1);
  EXPECT_THAT(chat("alice"),
              AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("Retry-After: 1\r\n"),
                    HasSubstr(R"("type":"rate_limit_error")"), HasSubstr(R"("code":"rate_limit_exceeded")")));
  FakeEngine::answer(asked, "x");
  EXPECT_THAT(first.read_answer(), StartsWith("HTTP/1.1 200 "));
  engine_.on_submit([](const FakeEngine::Asked& next) { FakeEngine::answer(next, "x"); });
  for (int i = 0; i < 3; ++i) EXPECT_THAT(chat("alice"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(chat("bob", R"({"messages":[{"role":"user","content":"hi"}],"n":4})"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(chat("alice", R"({"messages":[{"role":"user","content":"hi"}],"n":4})"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(ServerAuthTest, WhoGoesAwayGivesBackWhatTheyHad) {
  start({tenant_of("alice", {.most_concurrent = 1, .most_queued = 1})});
  for (uint64_t i = 1; i <= 3; ++i) {
    {
      RawClient client(server_->port());
      client.send(post("/v1/chat/completions", kHi, "alice"));
      next_asked(i);
    }
    EXPECT_TRUE(eventually([&] { return engine_.was_cancelled(i); }));
  }
}

TEST_F(ServerAuthTest, TokensPerMinute) {
  engine_.on_submit([](const FakeEngine::Asked& asked) { FakeEngine::answer(asked, "0123456789", 30); });
  start({tenant_of("alice", {.tokens_per_minute = 60})});
  EXPECT_THAT(chat("alice"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(chat("alice"), StartsWith("HTTP/1.1 200 "));  // by its estimate, some 13 tokens; 80 are used now
  EXPECT_THAT(chat("alice"),
              AllOf(StartsWith("HTTP/1.1 429 "), HasSubstr("Retry-After: 3"), HasSubstr("60 tokens per minute")));
}

TEST_F(ServerAuthTest, ReportsAreTheirTenantsOwn) {
  engine_.on_submit([](const FakeEngine::Asked& asked) {
    asked.stream->push(Accepted{3});
    engine::Finished finished{};
    finished.cache = std::make_shared<engine::CacheReport>();
    asked.stream->push(finished);
  });
  start({tenant_of("alice"), tenant_of("bob")});
  EXPECT_THAT(ask("POST /v1/chat/completions HTTP/1.1\r\n" + headers_of("alice") +
                  fmt::format("x-request-id: mine\r\nContent-Length: {}\r\n\r\n{}", std::strlen(kHi), kHi)),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(get("/v1/requests/mine/cache", "alice"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(get("/v1/requests/mine/cache", "bob"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(ServerAuthTest, OtherMachinesNeedKeys) {
  ServeOptions open;
  open.host = "0.0.0.0";
  open.port = 0;
  const auto refused = Server::create(engine_, open);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "--host");
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("--api-key"), HasSubstr("--no-auth")));
  for (const char* host : {"127.0.0.1", "127.8.8.8", "::1", "localhost"}) {
    open.host = host;
    EXPECT_TRUE(check_options(open)) << host;
  }
  for (const char* host : {"::", "192.0.2.1", "::ffff:192.0.2.1"}) {
    open.host = host;
    EXPECT_FALSE(check_options(open)) << host;
  }
  open.exposure = Exposure::kAnyone;
  EXPECT_TRUE(check_options(open));
  open.exposure = Exposure::kKeys;
  open.auth.api_key = "own";
  EXPECT_TRUE(check_options(open));
}

}  // namespace
}  // namespace pagoda::serve
