#include "serve/key_file.h"

#include <gmock/gmock.h>

#include <random>

#include "base/test_seed.h"

namespace pagoda::serve {
namespace {

using testing::HasSubstr;
using testing::Not;

// SHA-256 of "secret-a".
const std::string kDigest = to_hex(key_digest("secret-a"));

std::string one(const std::string& members) {
  return R"({"tenants":[{"name":"a","keys":[")" + kDigest + "\"]" + members + "}]}";
}
std::string error_of(const std::string& text) {
  const auto tenants = parse_key_file(text);
  return tenants ? "no error" : tenants.error().to_string();
}

TEST(KeyFileTest, ReadsAllFields) {
  const auto tenants = parse_key_file(
      one(R"(,"weight":3,"priority":-2,"admin":true,"max_concurrent":8,"max_queued":16,"tokens_per_minute":1000,)"
          R"("kv_bytes":1000000,"context_tokens":512,"models":["x","y"],"cache_space":"team")"));
  ASSERT_TRUE(tenants) << tenants.error().to_string();
  ASSERT_EQ(tenants->size(), 1u);
  const Tenant& tenant = tenants->front();
  EXPECT_EQ(tenant.name, "a");
  EXPECT_EQ(tenant.keys, std::vector{key_digest("secret-a")});
  EXPECT_EQ(tenant.weight, 3);
  EXPECT_EQ(tenant.priority, -2);
  EXPECT_EQ(tenant.role, Tenant::Role::kAdmin);
  EXPECT_EQ(tenant.limits, (TenantLimits{8, 16, 1000, 1'000'000, 512, {"x", "y"}}));
  EXPECT_EQ(tenant.cache_space, "team");
  EXPECT_TRUE(tenant.may_use("x"));
  EXPECT_FALSE(tenant.may_use("z"));
  EXPECT_EQ(*parse_key_file(key_file_json(*tenants)), *tenants);
}

TEST(KeyFileTest, WhatIsLeftOutHasNoLimit) {
  const auto tenants = parse_key_file(one(R"(,"weight":null)"));
  ASSERT_TRUE(tenants) << tenants.error().to_string();
  EXPECT_EQ(tenants->front(), (Tenant{.name = "a", .keys = {key_digest("secret-a")}}));
  EXPECT_TRUE(tenants->front().may_use("anything"));
  EXPECT_TRUE(parse_key_file(R"({"tenants":[]})")->empty());
  EXPECT_TRUE(parse_key_file(R"({"tenants":[{"name":"a","keys":[]}]})"));
}

TEST(KeyFileTest, ErrorsNameTheField) {
  EXPECT_THAT(error_of(""), HasSubstr("line 1, column 1"));
  EXPECT_THAT(error_of("{\n \"tenants\": [}"), AllOf(HasSubstr("not valid JSON"), HasSubstr("line 2, column 14")));
  EXPECT_THAT(error_of("[]"), HasSubstr("\"tenants\""));
  EXPECT_THAT(error_of(R"({"tenants":[],"x":1})"), HasSubstr("\"tenants\""));
  EXPECT_THAT(error_of(R"({"tenants":[1]})"), HasSubstr("(tenants[0])"));
  EXPECT_THAT(error_of(R"({"tenants":[{"keys":[]}]})"), HasSubstr("(tenants[0].name)"));
  EXPECT_THAT(error_of(R"({"tenants":[{"name":"a b","keys":[]}]})"), HasSubstr("(tenants[0].name)"));
  EXPECT_THAT(error_of(R"({"tenants":[{"name":"a"}]})"), HasSubstr("(tenants[0].keys)"));
  EXPECT_THAT(error_of(one(R"(,"wieght":3)")), HasSubstr("wieght is no field"));
  for (const char* wrong : {"0", "10001", "1.5", "\"2\"", "[]", "18446744073709551615", "1e99"})
    EXPECT_THAT(error_of(one(fmt::format(R"(,"weight":{})", wrong))), HasSubstr("(tenants[0].weight)")) << wrong;
  for (const char* field : {"max_concurrent", "max_queued", "tokens_per_minute", "kv_bytes", "context_tokens"})
    EXPECT_THAT(error_of(one(fmt::format(R"(,"{}":0)", field))), HasSubstr(fmt::format("(tenants[0].{})", field)));
  EXPECT_THAT(error_of(one(R"(,"admin":1)")), HasSubstr("(tenants[0].admin)"));
  EXPECT_THAT(error_of(one(R"(,"models":[])")), HasSubstr("(tenants[0].models)"));
  EXPECT_THAT(error_of(one(R"(,"models":[""])")), HasSubstr("(tenants[0].models)"));
  EXPECT_THAT(error_of(one(R"(,"cache_space":"a/b")")), HasSubstr("(tenants[0].cache_space)"));
  const std::string twice = R"({"name":"a","keys":[]})";
  EXPECT_THAT(error_of(R"({"tenants":[)" + twice + "," + twice + "]}"), HasSubstr("(tenants[1].name)"));
  EXPECT_THAT(error_of(R"({"tenants":[{"name":"a","keys":[")" + kDigest + "\",\"" + kDigest + "\"]}]}"),
              HasSubstr("(tenants[0].keys[1])"));
  EXPECT_THAT(error_of(std::string(kMaxKeyFileBytes + 1, ' ')), HasSubstr("more than"));
  EXPECT_THAT(error_of(std::string(100, '[')), HasSubstr("nested"));
}

// Wherever a user puts a key by mistake.
TEST(KeyFileTest, ErrorsHoldNoKey) {
  const std::string key = "pgd-0123456789abcdef";
  for (const std::string text :
       {R"({"tenants":[{"name":"a","keys":["KEY"]}]})", R"({"tenants":[{"name":"a","keys":"KEY"}]})",
        R"({"tenants":[{"name":"KEY KEY","keys":[]}]})", R"({"tenants":[{"name":"a","keys":{"KEY":1}}]})",
        R"({"tenants":[{"KEY":"a"}]})", R"({"KEY":[]})", R"(KEY)", R"({"tenants":[{"name":"a","keys":[KEY]}]})",
        R"({"tenants":[{"name":"a","keys":["KEY)", R"({"tenants":[{"name":"a","keys":[],"weight":"KEY"}]})",
        R"({"tenants":"KEY"})", R"({"tenants":["KEY"]})", R"({"tenants":[{"name":"a","keys":[],"models":"KEY"}]})"}) {
    std::string with_key = text;
    for (size_t at = 0; (at = with_key.find("KEY")) != std::string::npos;) with_key.replace(at, 3, key);
    const std::string error = error_of(with_key);
    EXPECT_NE(error, "no error") << text;
    EXPECT_THAT(error, Not(HasSubstr("pgd-"))) << text;
    EXPECT_THAT(error, Not(HasSubstr("456789"))) << text;
  }
}

TEST(KeyFileTest, AnyDamageIsAnErrorOrAFile) {
  const std::string whole = one(R"(,"weight":3,"models":["x"],"max_queued":4,"cache_space":"team","admin":false)");
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = whole;
    for (uint64_t n = 1 + random() % 3; n > 0 && !damaged.empty(); --n) {
      const size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.erase(at, 1 + random() % 8);
          break;
        default:
          damaged.insert(at, damaged.substr(random() % damaged.size(), 8));
      }
    }
    const auto tenants = parse_key_file(damaged);
    if (!tenants) continue;
    EXPECT_EQ(parse_key_file(key_file_json(*tenants)).value(), *tenants) << damaged;
  }
}

}  // namespace
}  // namespace pagoda::serve
