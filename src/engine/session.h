// What clients ask about sessions, and what they hear. Plain data between serve and the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kv/sessions.h"

namespace pagoda::engine {

struct SessionAsk {
  enum class Verb : uint8_t { kCreate, kGet, kList, kDelete, kFork, kPin, kUnpin, kExport, kImport };
  Verb verb = Verb::kGet;
  std::string tenant;             // empty: none, as in Request; likewise
  std::string cache_space;        // which its blocks are in; the session is its tenant's in any
  std::string cache_salt;         // together they are the only ones who know of the session
  std::string name;               // kList: those behind this one
  std::string new_name;           // kFork
  std::optional<int64_t> ttl_us;  // kCreate; none: the server's.  kFork; none: as it was
  uint32_t number = 0;            // kExport: which part.  kList: how many
  std::string bytes;              // kImport: a part
};

struct SessionReport {
  kv::SessionInfo info;
  kv::SessionPlaces places;
  std::vector<std::string> tier_names;  // of places.tier_blocks
};
struct SessionPage {
  std::vector<kv::SessionInfo> sessions;
};
struct SessionBytes {
  std::vector<std::byte> bytes;
  uint32_t n_parts = 1;
};
struct SessionEnded {};
using SessionAnswer = std::variant<SessionReport, SessionPage, SessionBytes, SessionEnded>;

}  // namespace pagoda::engine
