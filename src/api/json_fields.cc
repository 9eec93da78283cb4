#include "api/json_fields.h"

#include <cmath>

#include "api/json_scan.h"
#include "base/json_weight.h"

namespace pagoda::api {

size_t parse_work_bytes(std::string_view text) {
  // Measured (json_fields_test.cc): the tree's strings, and one of them as it is read, in buffers that grow by doubling; its nodes.
  constexpr size_t kTextCopies = 6, kContainerBytes = 112, kMemberBytes = 112, kElementBytes = 48, kStringBytes = 48;
  const JsonWeight weight = weigh_json(text);
  return kTextCopies * weight.n_bytes + kContainerBytes * weight.n_containers + kMemberBytes * weight.n_members +
         kElementBytes * weight.n_elements + kStringBytes * weight.n_strings;
}

Result<Json> parse_json_object(std::string_view text) {
  if (json_depth(text, kMaxJsonDepth + 1) > kMaxJsonDepth) {
    return fail(ErrorCode::kInvalidArgument, "the body's JSON is nested deeper than {} levels", kMaxJsonDepth);
  }
  try {
    Json parsed = Json::parse(text);
    if (!parsed.is_object()) {
      return fail(ErrorCode::kInvalidArgument, "the body must be a JSON object, not {}", describe(parsed));
    }
    return parsed;
  } catch (const Json::exception& error) {
    std::string_view message = error.what();
    if (const size_t end = message.find("] "); end != std::string_view::npos) message.remove_prefix(end + 2);
    return fail(ErrorCode::kInvalidArgument, "the body is not valid JSON: {}", message);
  }
}

tl::unexpected<Error> invalid_field(std::string_view field, std::string message) {
  return fail(Error{ErrorCode::kInvalidArgument, std::move(message), std::string(field)});
}

tl::unexpected<Error> unsupported_field(std::string_view field, std::string message) {
  return fail(Error{ErrorCode::kUnsupported, std::move(message), std::string(field)});
}

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return text.size() <= 40 ? "the string \"" + text + "\"" : "a string";
    }
    default:
      return value.dump();
  }
}

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) > 9007199254740992.0) return std::nullopt;
  return static_cast<int64_t>(number);
}

const Json* Fields::find(std::string_view name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

Result<bool> Fields::boolean(std::string_view name, bool otherwise) const {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    return invalid_field(path(name), fmt::format("{} must be true or false, not {}", path(name), describe(*value)));
  }
  return value->get<bool>();
}

Result<double> Fields::number(std::string_view name, double otherwise, double low, double high) const {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= low && number <= high)) {
    return invalid_field(
        path(name), fmt::format("{} must be a number from {} to {}, not {}", path(name), low, high, describe(*value)));
  }
  return number;
}

Result<std::optional<int64_t>> Fields::integer(std::string_view name, int64_t low, int64_t high, Above above) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (above == Above::kClamped && value->is_number() && value->get<double>() >= static_cast<double>(high)) return high;
  const std::optional<int64_t> number = whole_number(*value);
  if (number && *number >= low && *number <= high) return number;
  const std::string range =
      above == Above::kClamped ? fmt::format("{} or more", low) : fmt::format("from {} to {}", low, high);
  return invalid_field(path(name),
                       fmt::format("{} must be a whole number {}, not {}", path(name), range, describe(*value)));
}

Result<std::optional<std::string>> Fields::string(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    return invalid_field(path(name), fmt::format("{} must be a string, not {}", path(name), describe(*value)));
  }
  return value->get<std::string>();
}

Result<const Json*> Fields::object(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) {
    return invalid_field(path(name), fmt::format("{} must be an object, not {}", path(name), describe(*value)));
  }
  return value;
}

Result<const Json*> Fields::list(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) {
    return invalid_field(path(name), fmt::format("{} must be a list, not {}", path(name), describe(*value)));
  }
  return value;
}

}  // namespace pagoda::api
