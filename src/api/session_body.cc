#include "api/session_body.h"

#include <algorithm>

#include "api/json_fields.h"
#include "engine/request.h"

namespace pagoda::api {

Result<SessionBody> parse_session_body(std::string_view body, std::span<const std::string_view> known) {
  SessionBody parsed;
  if (body.empty()) return parsed;
  TRY_ASSIGN(const Json object, parse_json_object(body));
  for (const auto& [name, ignored] : object.items()) {
    if (std::ranges::find(known, name) == known.end()) {
      return invalid_field(name, fmt::format("{} is no field of this request", name));
    }
  }
  const Fields fields(object);
  TRY_ASSIGN(auto id, fields.string("session_id"));
  if (id && !kv::is_session_name(*id)) {
    return invalid_field("session_id", "session_id must have from 1 to 128 characters of A-Z a-z 0-9 - _ . :");
  }
  parsed.session_id = std::move(id).value_or("");
  TRY_ASSIGN(auto salt, fields.string("cache_salt"));
  if (salt && (salt->empty() || salt->size() > 1024)) {
    return invalid_field("cache_salt", "cache_salt must have from 1 to 1024 characters");
  }
  parsed.cache_salt = std::move(salt).value_or("");
  TRY_ASSIGN(parsed.ttl_seconds, fields.integer("ttl_seconds", 1, kMaxTtlSeconds));
  return parsed;
}

}  // namespace pagoda::api
