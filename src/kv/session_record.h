// SessionRecord: a session as it outlives the process: whose it is and which tokens its path holds. The blocks are the tiers' affair; a key
// there follows from root and tokens. One small file each; little-endian:
//
//   0 "PGDASESS"  8 u32 version 1  12 u32 flags (1: pinned)  16 namespace[16]  32 fingerprint[16]  48 i64 ttl us  56 i64 left us
//   64 i64 saved, unix s  72 u32 name bytes  76 u32 tokens  80 name, padded to 4  tokens x u32  u32 CRC32C of all before
//
// The parser takes any bytes and never reads past the end.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "base/token_id.h"
#include "kv/ids.h"
#include "kv/session_name.h"

namespace pagoda::kv {

inline constexpr size_t kMaxSessionTokens = size_t{1} << 24;

struct SessionKey {
  CacheNamespace cache_namespace;
  std::string name;
  friend bool operator==(const SessionKey&, const SessionKey&) = default;
  friend auto operator<=>(const SessionKey& a, const SessionKey& b) {
    if (const auto order = a.cache_namespace.bits <=> b.cache_namespace.bits; order != 0) return order;
    return a.name <=> b.name;
  }
};

using SharedTokens = std::shared_ptr<const std::vector<TokenId>>;

struct SessionRecord {
  SessionKey key;
  Hash128 fingerprint;  // of the model, as PrefixConfig has it
  SharedTokens token_ids;
  int64_t ttl_us = 0;
  int64_t left_us = 0;  // of it, when it was saved
  bool is_pinned = false;
};

std::vector<std::byte> encode_session(const SessionRecord& record, int64_t saved_unix_s);
// left_us is what is left at now_unix_s; not above 0 where it has expired. Errors: kBadFile, kUnsupported (another version).
Result<SessionRecord> parse_session(std::span<const std::byte> bytes, int64_t now_unix_s);

}  // namespace pagoda::kv
