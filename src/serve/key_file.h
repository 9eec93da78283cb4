// The key file: who may ask, as JSON. Of keys it holds SHA-256 digests only, which `pagoda key` prints beside a new key.
//
//   {"tenants": [{"name": "alice", "keys": ["<64 hex digits>"],            required; no key: nobody gets in as alice
//                 "weight": 1, "priority": 0, "admin": false,
//                 "max_concurrent": 8, "max_queued": 16, "tokens_per_minute": 100000, "kv_bytes": 1000000000,
//                 "context_tokens": 4096, "models": ["smollm2"], "cache_space": "team"}]}
//
// Errors: kBadFile; `where` is the field, as tenants[0].weight, or line and column. A message holds nothing that the file holds but names of
// fields: what a user put in the wrong place may be a key.     Threads: pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "serve/tenant.h"

namespace pagoda::serve {

inline constexpr size_t kMaxKeyFileBytes = 1 << 20;
inline constexpr size_t kMaxKeys = 4096;  // a request's is compared with all of them

// A name or a key that occurs twice is an error, and so is an unknown field.
Result<std::vector<Tenant>> parse_key_file(std::string_view text);

// One entry of the file.
std::string tenant_json(const Tenant& tenant);
// The whole file.
std::string key_file_json(const std::vector<Tenant>& tenants);

// What the file has of a key.
inline Sha256 key_digest(std::string_view key) { return sha256(std::as_bytes(std::span(key))); }

}  // namespace pagoda::serve
