// Fields: typed looks into a JSON object from a client. Absent and null are the same; anything of the wrong type or out of range is
// kInvalidArgument whose `where` is the field's name, and whose message says what was wanted and what came.
// Lifetime: a view of the object.     Threads: pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pagoda::api {

using Json = nlohmann::json;

// What parsing a body takes beside what is kept of it, at most; of small bodies kMostParseFactor bytes by byte.     Cost: a pass over it.
size_t parse_work_bytes(std::string_view text);
inline constexpr size_t kMostParseFactor = 128;

// Nesting deeper than kMaxJsonDepth and anything that is not a JSON object in UTF-8 is kInvalidArgument.
inline constexpr int kMaxJsonDepth = 128;
Result<Json> parse_json_object(std::string_view text);

tl::unexpected<Error> invalid_field(std::string_view field, std::string message);
tl::unexpected<Error> unsupported_field(std::string_view field, std::string message);
// "the string \"hot\"", "a list", "12": what came, shortened.
std::string describe(const Json& value);
// A whole number, also one written as 3.0; nothing if it is none or does not fit.
std::optional<int64_t> whole_number(const Json& value);

class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  // Null if the member is absent or null.
  const Json* find(std::string_view name) const;
  std::string path(std::string_view name) const { return prefix_ + std::string(name); }

  Result<bool> boolean(std::string_view name, bool otherwise) const;
  Result<double> number(std::string_view name, double otherwise, double low, double high) const;
  // Values above `high` are taken as `high` if clamped is asked for, else refused.
  enum class Above : uint8_t { kRefused, kClamped };
  Result<std::optional<int64_t>> integer(std::string_view name, int64_t low, int64_t high,
                                         Above above = Above::kRefused) const;
  Result<std::optional<std::string>> string(std::string_view name) const;
  Result<const Json*> object(std::string_view name) const;  // null if absent
  Result<const Json*> list(std::string_view name) const;    // null if absent

 private:
  const Json& object_;
  std::string prefix_;
};

}  // namespace pagoda::api
