#include "serve/auth.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "base/log.h"
#include "base/named.h"
#include "serve/key_file.h"

namespace pagoda::serve {
namespace {

constexpr size_t kMaxKeyBytes = 512;

struct RouteAccess {
  std::string_view path;
  Access access;
};
constexpr std::array kRoutes{
    RouteAccess{"/", Access::kOpen},         RouteAccess{"/health", Access::kOpen},
    RouteAccess{"/ping", Access::kOpen},     RouteAccess{"/livez", Access::kOpen},
    RouteAccess{"/readyz", Access::kOpen},   RouteAccess{"/version", Access::kOpen},
    RouteAccess{"/v1/kv", Access::kAdmin},   RouteAccess{"/v1/engine", Access::kAdmin},
    RouteAccess{"/metrics", Access::kAdmin}, RouteAccess{"/v1/diagnosis", Access::kAdmin},
};

Result<std::string> read_key_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kIo, "cannot read {}: {}", path.string(), std::strerror(errno));
  std::string text(kMaxKeyFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) return fail(ErrorCode::kIo, "cannot read {}", path.string());
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxKeyFileBytes)
    return fail(ErrorCode::kBadFile, "{} has more than {} bytes", path.string(), kMaxKeyFileBytes);
  return text;
}

Result<std::vector<Tenant>> parse_tenants(const std::filesystem::path& path, std::string_view text) {
  auto tenants = parse_key_file(text);
  if (tenants) return tenants;
  return fail(
      Error{ErrorCode::kBadFile, fmt::format("{}: {}", path.string(), tenants.error().to_string()), "--api-keys"});
}

}  // namespace

Access access_of(std::string_view path) {
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);  // as the router takes it
  for (const RouteAccess& route : kRoutes) {
    const bool is_below = route.access == Access::kAdmin && path.starts_with(route.path) &&
                          path.substr(route.path.size()).starts_with('/');
    if (path == route.path || is_below) return route.access;
  }
  return Access::kKey;
}

std::string_view key_of(const http::HttpRequest& request) {
  constexpr std::string_view kScheme = "bearer ";
  std::string_view value = request.header("authorization");
  if (value.size() <= kScheme.size() || !http::equal_ignoring_case(value.substr(0, kScheme.size()), kScheme))
    return request.header("x-api-key");
  value.remove_prefix(kScheme.size());
  value.remove_prefix(std::min(value.size(), value.find_first_not_of(' ')));
  return value;
}

Result<std::vector<Tenant>> load_key_file(const std::filesystem::path& path) {
  TRY_ASSIGN(const std::string text, named("--api-keys", read_key_file(path)));
  return parse_tenants(path, text);
}

void Caller::sign(engine::Request& request) const {
  request.tenant = tenant->name;
  request.cache_space = tenant->cache_space;
  request.share = {.weight = tenant->weight, .priority = tenant->priority};
  request.context_tokens = tenant->limits.context_tokens;
}

Auth::Auth(const AuthOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      owner_{std::make_shared<Tenant>(Tenant{.name = {}, .role = Tenant::Role::kAdmin}),
             std::make_shared<TenantUse>(clock)} {}

Result<std::unique_ptr<Auth>> Auth::create(const AuthOptions& options, const Clock& clock) {
  std::unique_ptr<Auth> auth(new Auth(options, clock));
  std::vector<Tenant> tenants;
  if (!options.key_file.empty()) {
    TRY_ASSIGN(auth->read_text_, named("--api-keys", read_key_file(options.key_file)));
    TRY_ASSIGN(tenants, parse_tenants(options.key_file, auth->read_text_));
  }
  auth->keys_ = auth->make_keys(std::move(tenants));
  if (options.has_keys()) auth->thread_ = std::thread([raw = auth.get()] { raw->watch(); });
  return auth;
}

Auth::~Auth() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// What each tenant has taken stays.
std::shared_ptr<const Auth::Keys> Auth::make_keys(std::vector<Tenant> tenants) const {
  std::map<std::string, std::shared_ptr<TenantUse>> uses;
  const std::shared_ptr<const Keys> old = keys();
  if (old) {
    for (const Caller& caller : old->callers) uses[caller.tenant->name] = caller.use;
  }
  auto made = std::make_shared<Keys>();
  made->callers.push_back(owner_);
  const size_t n_own = options_.api_key.empty() ? 0 : 1;
  if (n_own > 0) made->entries.push_back({key_digest(options_.api_key), 0});
  for (Tenant& tenant : tenants) {
    std::shared_ptr<TenantUse>& use = uses[tenant.name];
    if (!use) use = std::make_shared<TenantUse>(clock_);
    for (const Sha256& key : tenant.keys) made->entries.push_back({key, made->callers.size()});
    made->callers.push_back({std::make_shared<const Tenant>(std::move(tenant)), use});
  }
  if (options_.has_keys()) {
    LOG_INFO("keys: {} of {} tenants{}", made->entries.size() - n_own, made->callers.size() - 1,
             n_own > 0 ? " and the server's own" : "");
  }
  return made;
}

std::shared_ptr<const Auth::Keys> Auth::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

// Compares with every one, whichever it is.
const Caller* Auth::find(const Keys& keys, std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) return nullptr;
  const Sha256 digest = key_digest(key);
  const Caller* found = nullptr;
  for (const Keys::Entry& entry : keys.entries) {
    if (equal_in_constant_time(entry.digest, digest)) found = &keys.callers[entry.caller];
  }
  return found;
}

Result<Caller> Auth::admit(const http::HttpRequest& request) const {
  if (!options_.has_keys() || request.method == "OPTIONS") return owner_;
  const Access access = access_of(request.path);
  if (access == Access::kOpen) return owner_;
  const std::string_view key = key_of(request);
  const std::shared_ptr<const Keys> keys = this->keys();
  const Caller* caller = find(*keys, key);
  if (caller == nullptr) {
    n_refused_.fetch_add(1, std::memory_order_relaxed);
    return fail(ErrorCode::kUnauthenticated, "{}",
                key.empty() ? "this server wants a key: send it as Authorization: Bearer KEY, or as x-api-key"
                            : "this server does not know the key that was sent");
  }
  if (access == Access::kAdmin && caller->tenant->role != Tenant::Role::kAdmin)
    return fail(ErrorCode::kForbidden, "{} is for admins, and this key is not an admin's", request.path);
  return *caller;
}

void Auth::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.poll_every, [&] { return is_stopping_; })) {
    lock.unlock();
    reload();
    if (const uint64_t n = n_refused_.exchange(0, std::memory_order_relaxed); n > 0)
      LOG_INFO("{} requests were refused for want of a known key", n);
    lock.lock();
  }
}

void Auth::reload() {
  if (options_.key_file.empty()) return;
  const std::lock_guard reading(reload_mutex_);
  Result<std::string> text = read_key_file(options_.key_file);
  if (!text) {
    if (!std::exchange(is_gone_, true)) LOG_WARN("the keys stay as they are: {}", text.error().to_string());
    return;
  }
  is_gone_ = false;
  if (*text == read_text_) return;
  read_text_ = std::move(*text);
  auto tenants = parse_tenants(options_.key_file, read_text_);
  if (!tenants) return LOG_WARN("the keys stay as they are: {}", tenants.error().message);
  auto made = make_keys(std::move(*tenants));
  const std::lock_guard lock(mutex_);
  keys_ = std::move(made);
}

}  // namespace pagoda::serve
