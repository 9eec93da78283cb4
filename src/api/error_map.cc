#include "api/error_map.h"

#include "api/json_text.h"

namespace pagoda::api {
namespace {

std::string error_body(std::string_view message, std::string_view type, std::string_view param, std::string_view code) {
  std::string out = R"({"error":{"message":)";
  append_json_string(out, message);
  out += R"(,"type":)";
  append_json_string(out, type);
  out += R"(,"param":)";
  out += param.empty() ? "null" : json_string(param);
  out += R"(,"code":)";
  out += code.empty() ? "null" : json_string(code);
  out += "}}";
  return out;
}

// Whether `where` is a request's field: files and addresses are nothing a client should see.
bool names_a_field(ErrorCode code) {
  return code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported || code == ErrorCode::kNotFound ||
         code == ErrorCode::kContextExceeded || code == ErrorCode::kConflict || code == ErrorCode::kForbidden;
}

std::string_view code_of(const Error& error, const ErrorFace& face) {
  if (error.code != ErrorCode::kNotFound) return face.code;
  if (error.where == "session_id") return "session_not_found";
  return error.where == "part" ? "part_not_found" : face.code;
}

}  // namespace

ErrorFace error_face(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return {400, "invalid_request_error", "", "invalid_argument"};
    case ErrorCode::kNotFound:
      return {404, "not_found_error", "model_not_found", "not_found"};
    case ErrorCode::kBadFile:
      return {500, "server_error", "bad_file", "bad_file"};
    case ErrorCode::kUnsupported:
      return {400, "invalid_request_error", "unsupported", "unsupported"};
    case ErrorCode::kContextExceeded:
      return {400, "invalid_request_error", "context_length_exceeded", "context_exceeded"};
    case ErrorCode::kOverloaded:
      return {429, "rate_limit_error", "overloaded", "overloaded"};
    case ErrorCode::kUnavailable:
      return {503, "unavailable_error", "unavailable", "unavailable"};
    case ErrorCode::kTimeout:
      return {504, "timeout_error", "timeout", "timeout"};
    case ErrorCode::kConflict:
      return {409, "conflict_error", "conflict", "conflict"};
    case ErrorCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key", "unauthenticated"};
    case ErrorCode::kForbidden:
      return {403, "permission_error", "forbidden", "forbidden"};
    case ErrorCode::kRateLimited:
      return {429, "rate_limit_error", "rate_limit_exceeded", "rate_limited"};
    case ErrorCode::kCancelled:
      return {499, "cancelled_error", "cancelled", "cancelled"};
    case ErrorCode::kResourceExhausted:
      return {503, "server_error", "out_of_resources", "out_of_resources"};
    case ErrorCode::kIo:
      return {500, "server_error", "io", "io"};
    case ErrorCode::kInternal:
      return {500, "server_error", "", "internal"};
  }
  return {500, "server_error", "", "internal"};
}

std::string openai_error(const Error& error) {
  const ErrorFace face = error_face(error.code);
  return error_body(error.message, face.type, names_a_field(error.code) ? error.where : "", code_of(error, face));
}

std::string openai_error(int status, std::string_view message) {
  const std::string_view type = status == 404   ? "not_found_error"
                                : status == 409 ? "conflict_error"
                                : status == 503 ? "unavailable_error"
                                : status >= 500 ? "server_error"
                                                : "invalid_request_error";
  return error_body(message, type, "", "");
}

}  // namespace pagoda::api
