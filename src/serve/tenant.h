// Tenant: who sends requests under keys of their own, and what they may have. Plain data, from the key file (key_file.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "engine/request.h"

namespace pagoda::serve {

// None: no limit but the server's. An answer is one choice of one prompt.
struct TenantLimits {
  std::optional<int> most_concurrent{};        // at once
  std::optional<int> most_queued{};            // of those, without a token yet
  std::optional<int64_t> tokens_per_minute{};  // prompt tokens that are computed, and generated ones
  std::optional<uint64_t> kv_bytes{};          // that its answers may come to hold together
  std::optional<int> context_tokens{};         // prompt and answer
  std::vector<std::string> models{};           // served names; empty: all

  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

struct Tenant {
  std::string name;              // is_tenant_name; empty: the server's owner
  std::vector<Sha256> keys{};    // digests: the keys themselves are nowhere
  int weight = 1, priority = 0;  // engine::TenantShare
  enum class Role : uint8_t { kUser, kAdmin } role = Role::kUser;
  TenantLimits limits{};
  std::string cache_space{};  // empty: its own

  bool may_use(std::string_view model) const {
    return limits.models.empty() || std::ranges::find(limits.models, model) != limits.models.end();
  }
  friend bool operator==(const Tenant&, const Tenant&) = default;
};

inline constexpr size_t kMaxTenantName = 64;

// 1 to 64 letters, digits and - _ . : names go into logs and metrics as they are. Spaces of the cache are named so too.
constexpr bool is_tenant_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
  };
  return !name.empty() && name.size() <= kMaxTenantName && std::all_of(name.begin(), name.end(), is_allowed);
}

}  // namespace pagoda::serve
