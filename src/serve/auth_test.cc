#include "serve/auth.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/test_folder.h"
#include "serve/key_file.h"

namespace pagoda::serve {
namespace {

using testing::HasSubstr;

http::HttpRequest request_of(const std::string& path, std::vector<http::Header> headers = {}) {
  http::HttpRequest request;
  request.method = "GET";
  request.path = path;
  request.headers = std::move(headers);
  return request;
}
http::HttpRequest with_key(const std::string& path, const std::string& key) {
  return request_of(path, {{"Authorization", "Bearer " + key}});
}

class AuthTest : public testing::Test {
 protected:
  static Tenant tenant_of(const std::string& name) { return {.name = name, .keys = {key_digest("key-" + name)}}; }
  void write(const std::string& text) { std::ofstream(file_) << text; }
  void write(const std::vector<Tenant>& tenants) { write(key_file_json(tenants)); }
  std::unique_ptr<Auth> create(const std::string& api_key = "") {
    auto made = Auth::create({.api_key = api_key, .key_file = file_, .poll_every = std::chrono::hours(1)}, clock_);
    EXPECT_TRUE(made) << made.error().to_string();
    return std::move(*made);
  }
  // The tenant's name, or the error's.
  static std::string ask(const Auth& auth, const http::HttpRequest& request) {
    const Result<Caller> caller = auth.admit(request);
    return caller ? "<" + caller->tenant->name + ">" : std::string(to_string(caller.error().code));
  }
  static std::string ask(const Auth& auth, const std::string& key) { return ask(auth, with_key("/v1/models", key)); }

  TestFolder folder_;
  const std::filesystem::path file_ = folder_.path() / "keys.json";
  FakeClock clock_;
};

TEST(AccessTest, EveryRouteHasALevel) {
  for (const char* path : {"/", "/health", "/ping", "/livez", "/readyz", "/version", "/health/"})
    EXPECT_EQ(access_of(path), Access::kOpen) << path;
  for (const char* path : {"/v1/kv", "/v1/kv/", "/v1/kv/blocks", "/v1/engine", "/metrics", "/v1/diagnosis/x"})
    EXPECT_EQ(access_of(path), Access::kAdmin) << path;
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/sessions",
                           "/v1/requests/a/cache", "/v1/kvx", "/healthx", "/health/x", "/unknown", ""})
    EXPECT_EQ(access_of(path), Access::kKey) << path;
}

TEST(AccessTest, KeysComeInTwoHeaders) {
  EXPECT_EQ(key_of(request_of("/", {{"authorization", "Bearer abc"}})), "abc");
  EXPECT_EQ(key_of(request_of("/", {{"Authorization", "bEARER   abc"}})), "abc");
  EXPECT_EQ(key_of(request_of("/", {{"X-API-Key", "abc"}})), "abc");
  EXPECT_EQ(key_of(request_of("/", {{"Authorization", "Basic abc"}, {"x-api-key", "def"}})), "def");
  EXPECT_EQ(key_of(request_of("/", {{"Authorization", "Bearer abc"}, {"x-api-key", "def"}})), "abc");
  EXPECT_EQ(key_of(request_of("/", {{"Authorization", "Bearer "}})), "");
  EXPECT_EQ(key_of(request_of("/", {{"Authorization", "Bearer    "}})), "");
  EXPECT_EQ(key_of(request_of("/")), "");
}

TEST_F(AuthTest, WithoutKeysEverybodyIsTheOwner) {
  const auto auth = Auth::create({}, clock_);
  ASSERT_TRUE(auth);
  EXPECT_EQ(ask(**auth, request_of("/v1/engine")), "<>");
  EXPECT_EQ(ask(**auth, "anything"), "<>");
}

TEST_F(AuthTest, TheServersOwnKey) {
  const auto auth = Auth::create({.api_key = "own"}, clock_);
  ASSERT_TRUE(auth);
  EXPECT_EQ(ask(**auth, "own"), "<>");
  EXPECT_EQ(ask(**auth, with_key("/v1/engine", "own")), "<>");
  for (const char* wrong : {"", "ow", "owned", "Own"}) EXPECT_EQ(ask(**auth, wrong), "unauthenticated") << wrong;
  EXPECT_EQ(ask(**auth, std::string(100'000, 'x')), "unauthenticated");
  EXPECT_EQ(ask(**auth, request_of("/health")), "<>");
  http::HttpRequest preflight = request_of("/v1/models");
  preflight.method = "OPTIONS";
  EXPECT_EQ(ask(**auth, preflight), "<>");
}

TEST_F(AuthTest, TenantsAndAdmins) {
  Tenant admin = tenant_of("boss");
  admin.role = Tenant::Role::kAdmin;
  Tenant alice = tenant_of("alice");
  alice.keys.push_back(key_digest("another"));
  alice.cache_space = "team";
  alice.weight = 3;
  alice.limits.context_tokens = 100;
  write({alice, admin});
  const auto auth = create("own");
  EXPECT_EQ(ask(*auth, "key-alice"), "<alice>");
  EXPECT_EQ(ask(*auth, "another"), "<alice>");
  EXPECT_EQ(ask(*auth, "own"), "<>");
  EXPECT_EQ(ask(*auth, to_hex(key_digest("another"))), "unauthenticated");  // what the file has is no key
  EXPECT_EQ(ask(*auth, with_key("/v1/engine", "key-alice")), "forbidden");
  EXPECT_EQ(ask(*auth, with_key("/v1/kv/blocks", "key-alice")), "forbidden");
  EXPECT_EQ(ask(*auth, with_key("/v1/engine", "key-boss")), "<boss>");
  EXPECT_EQ(ask(*auth, request_of("/v1/engine")), "unauthenticated");
  engine::Request request;
  auth->admit(with_key("/v1/models", "another"))->sign(request);
  EXPECT_EQ(request.tenant, "alice");
  EXPECT_EQ(request.cache_space, "team");
  EXPECT_EQ(request.share.weight, 3);
  EXPECT_EQ(request.context_tokens, 100);
}

TEST_F(AuthTest, ReloadedKeysCountAtOnce) {
  write({tenant_of("alice"), tenant_of("bob")});
  const auto auth = create();
  const auto use = auth->admit(with_key("/v1/models", "key-alice"))->use;
  write({tenant_of("alice"), tenant_of("carol")});
  auth->reload();
  EXPECT_EQ(ask(*auth, "key-alice"), "<alice>");
  EXPECT_EQ(auth->admit(with_key("/v1/models", "key-alice"))->use, use);  // what she has taken stays
  EXPECT_EQ(ask(*auth, "key-bob"), "unauthenticated");
  EXPECT_EQ(ask(*auth, "key-carol"), "<carol>");
}

TEST_F(AuthTest, AWrongFileChangesNothing) {
  write({tenant_of("alice")});
  const auto auth = create();
  write(R"({"tenants":[{"name":"bob","keys":["not a digest"]}]})");
  testing::internal::CaptureStdout();  // spdlog's default
  auth->reload();
  auth->reload();
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_THAT(log, HasSubstr("tenants[0].keys[0]"));
  EXPECT_EQ(log.find("stay as they are"), log.rfind("stay as they are"));  // once
  EXPECT_EQ(ask(*auth, "key-alice"), "<alice>");
  std::filesystem::remove(file_);
  auth->reload();
  EXPECT_EQ(ask(*auth, "key-alice"), "<alice>");
  write({tenant_of("bob")});
  auth->reload();
  EXPECT_EQ(ask(*auth, "key-alice"), "unauthenticated");
  EXPECT_EQ(ask(*auth, "key-bob"), "<bob>");
}

TEST_F(AuthTest, AWrongFileAtTheStartIsAnOptionsError) {
  for (const auto& [text, words] :
       {std::pair{"{", "line 1, column 2"}, std::pair{R"({"tenants":[{}]})", "tenants[0].name"}}) {
    write(text);
    const auto auth = Auth::create({.key_file = file_}, clock_);
    ASSERT_FALSE(auth);
    EXPECT_EQ(auth.error().where, "--api-keys");
    EXPECT_THAT(auth.error().message, AllOf(HasSubstr("keys.json"), HasSubstr(words)));
  }
  const auto missing = Auth::create({.key_file = folder_.path() / "none"}, clock_);
  EXPECT_EQ(missing.error().code, ErrorCode::kIo);
  EXPECT_FALSE(Auth::create({.key_file = folder_.path()}, clock_));  // a folder
}

}  // namespace
}  // namespace pagoda::serve
