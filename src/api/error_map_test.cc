#include "api/error_map.h"

#include <gtest/gtest.h>

#include <set>

namespace pagoda::api {
namespace {

TEST(ErrorMap, EveryCodeHasAFace) {
  std::set<std::string_view> labels;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kRateLimited); ++code) {
    const ErrorFace face = error_face(static_cast<ErrorCode>(code));
    EXPECT_GE(face.status, 400);
    EXPECT_FALSE(face.type.empty());
    labels.insert(face.label);
  }
  EXPECT_EQ(labels.size(), static_cast<size_t>(ErrorCode::kRateLimited) + 1);
}

TEST(ErrorMap, OpenAiBodies) {
  EXPECT_EQ(openai_error(Error{ErrorCode::kInvalidArgument, "n must be \"one\"", "n"}),
            R"({"error":{"message":"n must be \"one\"","type":"invalid_request_error","param":"n","code":null}})");
  EXPECT_EQ(openai_error(Error{ErrorCode::kNotFound, "no model m", "model"}),
            R"({"error":{"message":"no model m","type":"not_found_error","param":"model","code":"model_not_found"}})");
  EXPECT_EQ(openai_error(Error{ErrorCode::kInternal, "oops", "/a/file:12"}),
            R"({"error":{"message":"oops","type":"server_error","param":null,"code":null}})");
  EXPECT_EQ(openai_error(413, "too large"),
            R"({"error":{"message":"too large","type":"invalid_request_error","param":null,"code":null}})");
}

}  // namespace
}  // namespace pagoda::api
