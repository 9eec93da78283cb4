#include "serve/key_file.h"

#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "api/json_scan.h"
#include "api/json_text.h"

namespace pagoda::serve {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 8;
constexpr int kLeastContextTokens = 64;  // as --ctx-size
constexpr std::array<std::string_view, 12> kFields{"name",     "keys",           "weight",     "priority",
                                                   "admin",    "max_concurrent", "max_queued", "tokens_per_minute",
                                                   "kv_bytes", "context_tokens", "models",     "cache_space"};

tl::unexpected<Error> bad(std::string where, std::string message) {
  return fail(Error{ErrorCode::kBadFile, std::move(message), std::move(where)});
}

// "line 3, column 5" of a place in the text.
std::string place_of(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto lines = std::ranges::count(before, '\n');
  const size_t begin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("line {}, column {}", lines + 1, before.size() - begin + 1);
}

Result<Json> parse_json(std::string_view text) {
  if (text.size() > kMaxKeyFileBytes) return bad({}, fmt::format("it has more than {} bytes", kMaxKeyFileBytes));
  if (api::json_depth(text, kMaxDepth + 1) > kMaxDepth) return bad({}, "it is nested too deeply");
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {  // whose own words hold some of the text
    return bad(place_of(text, error.byte > 0 ? error.byte - 1 : 0), "it is not valid JSON");
  } catch (const Json::exception&) {
    return bad({}, "it is not valid JSON");
  }
}

// A tenant's members. An absent one and null are the same.
class Entry {
 public:
  Entry(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  const Json* find(std::string_view name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  std::string path(std::string_view name) const { return fmt::format("{}.{}", place_, name); }

  Status check_names() const {
    for (const auto& [name, ignored] : object_.items()) {
      if (std::ranges::find(kFields, name) != kFields.end()) continue;
      const bool is_word = name.size() <= 32 && std::ranges::all_of(name, [](char c) {
                             return (c >= 'a' && c <= 'z') || c == '_';
                           });  // not a key
      return bad(place_, is_word ? fmt::format("{} is no field of a tenant", name) : "there is an unknown field");
    }
    return {};
  }
  template <typename T>
  Status read(std::string_view name, std::optional<T>& into, int64_t low, int64_t high) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    const bool is_whole =
        value->is_number_integer() && !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
    const int64_t number = is_whole ? value->get<int64_t>() : 0;
    if (!is_whole || number < low || number > high)
      return bad(path(name), fmt::format("it must be a whole number from {} to {}", low, high));
    into = static_cast<T>(number);
    return {};
  }
  Status read(std::string_view name, int& into, int64_t low, int64_t high) const {
    std::optional<int> value;
    TRY(read(name, value, low, high));
    if (value) into = *value;
    return {};
  }
  Status read_name(std::string_view name, std::string& into) const {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string() || !is_tenant_name(value->get_ref<const std::string&>())) {
      return bad(path(name), fmt::format("it must be a string of 1 to {} letters, digits and - _ .", kMaxTenantName));
    }
    into = value->get<std::string>();
    return {};
  }
  // Null where it is absent.
  Result<const Json*> list(std::string_view name) const {
    const Json* value = find(name);
    if (value != nullptr && !value->is_array()) return bad(path(name), "it must be a list");
    return value;
  }

 private:
  const Json& object_;
  const std::string place_;
};

Status read_keys(const Entry& entry, Tenant& tenant) {
  TRY_ASSIGN(const Json* keys, entry.list("keys"));
  if (keys == nullptr)
    return bad(entry.path("keys"), "it is missing: a list of keys' SHA-256 digests, as pagoda key prints them");
  for (size_t i = 0; i < keys->size(); ++i) {
    const Json& key = (*keys)[i];
    Sha256 digest;
    if (!key.is_string() || !from_hex(key.get_ref<const std::string&>(), digest)) {
      return bad(fmt::format("{}[{}]", entry.path("keys"), i),
                 "it must be the 64 hex digits of a key's SHA-256 digest, as pagoda key prints them, not the key");
    }
    tenant.keys.push_back(digest);
  }
  return {};
}

Status read_models(const Entry& entry, TenantLimits& limits) {
  TRY_ASSIGN(const Json* models, entry.list("models"));
  if (models == nullptr) return {};
  for (const Json& model : *models) {
    if (!model.is_string() || model.get_ref<const std::string&>().empty())
      return bad(entry.path("models"), "it must hold names of models");
    limits.models.push_back(model.get<std::string>());
  }
  if (limits.models.empty()) return bad(entry.path("models"), "it names no model: leave it out to allow all");
  return {};
}

Result<Tenant> read_tenant(const Json& object, std::string place) {
  if (!object.is_object()) return bad(std::move(place), "it must be an object");
  const Entry entry(object, std::move(place));
  Tenant tenant;
  TRY(entry.check_names());
  TRY(entry.read_name("name", tenant.name));
  if (tenant.name.empty()) return bad(entry.path("name"), "it is missing");
  TRY(read_keys(entry, tenant));
  TRY(entry.read("weight", tenant.weight, 1, 10'000));
  TRY(entry.read("priority", tenant.priority, -1000, 1000));
  if (const Json* admin = entry.find("admin")) {
    if (!admin->is_boolean()) return bad(entry.path("admin"), "it must be true or false");
    tenant.role = admin->get<bool>() ? Tenant::Role::kAdmin : Tenant::Role::kUser;
  }
  TenantLimits& limits = tenant.limits;
  TRY(entry.read("max_concurrent", limits.most_concurrent, 1, 1 << 20));
  TRY(entry.read("max_queued", limits.most_queued, 1, 1 << 20));
  TRY(entry.read("tokens_per_minute", limits.tokens_per_minute, 1, int64_t{1} << 40));
  TRY(entry.read("kv_bytes", limits.kv_bytes, 1, int64_t{1} << 60));
  TRY(entry.read("context_tokens", limits.context_tokens, kLeastContextTokens, 1 << 24));
  TRY(read_models(entry, limits));
  TRY(entry.read_name("cache_space", tenant.cache_space));
  return tenant;
}

Status check_unique(const std::vector<Tenant>& tenants) {
  std::set<std::string_view> names;
  std::set<Sha256> keys;
  for (size_t i = 0; i < tenants.size(); ++i) {
    if (!names.insert(tenants[i].name).second)
      return bad(fmt::format("tenants[{}].name", i), "another tenant has that name");
    for (size_t k = 0; k < tenants[i].keys.size(); ++k) {
      if (!keys.insert(tenants[i].keys[k]).second)
        return bad(fmt::format("tenants[{}].keys[{}]", i, k), "the key is there already");
    }
  }
  if (keys.size() > kMaxKeys) return bad("tenants", fmt::format("there are more than {} keys", kMaxKeys));
  return {};
}

template <typename T>
void append(std::string& out, std::string_view name, const std::optional<T>& value) {
  if (value) out += fmt::format(R"(,"{}":{})", name, *value);
}

}  // namespace

Result<std::vector<Tenant>> parse_key_file(std::string_view text) {
  TRY_ASSIGN(const Json root, parse_json(text));
  const auto list = root.is_object() ? root.find("tenants") : root.end();
  if (!root.is_object() || root.size() != 1 || list == root.end() || !list->is_array())
    return bad({}, R"(it must be an object with one member, "tenants", a list)");
  std::vector<Tenant> tenants;
  for (size_t i = 0; i < list->size(); ++i) {
    TRY_ASSIGN(Tenant tenant, read_tenant((*list)[i], fmt::format("tenants[{}]", i)));
    tenants.push_back(std::move(tenant));
  }
  TRY(check_unique(tenants));
  return tenants;
}

std::string tenant_json(const Tenant& tenant) {
  std::string out = fmt::format(R"({{"name":{},"keys":[)", api::json_string(tenant.name));
  for (const Sha256& key : tenant.keys) out += fmt::format(R"({}"{}")", out.back() == '[' ? "" : ",", to_hex(key));
  out += "]";
  if (tenant.weight != 1) out += fmt::format(R"(,"weight":{})", tenant.weight);
  if (tenant.priority != 0) out += fmt::format(R"(,"priority":{})", tenant.priority);
  if (tenant.role == Tenant::Role::kAdmin) out += R"(,"admin":true)";
  const TenantLimits& limits = tenant.limits;
  append(out, "max_concurrent", limits.most_concurrent);
  append(out, "max_queued", limits.most_queued);
  append(out, "tokens_per_minute", limits.tokens_per_minute);
  append(out, "kv_bytes", limits.kv_bytes);
  append(out, "context_tokens", limits.context_tokens);
  if (!limits.models.empty()) {
    std::string names;
    for (const std::string& model : limits.models) names += (names.empty() ? "" : ",") + api::json_string(model);
    out += fmt::format(R"(,"models":[{}])", names);
  }
  if (!tenant.cache_space.empty()) out += R"(,"cache_space":)" + api::json_string(tenant.cache_space);
  return out + "}";
}

std::string key_file_json(const std::vector<Tenant>& tenants) {
  std::string out;
  for (const Tenant& tenant : tenants) out += (out.empty() ? "" : ",\n  ") + tenant_json(tenant);
  return "{\"tenants\": [\n  " + out + "\n]}\n";
}

}  // namespace pagoda::serve
