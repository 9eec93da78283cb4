// Why a token had to be computed though it might have been cached. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/token_id.h"

namespace pagoda::kv {

// Why the token behind the reused ones is computed.
enum class MissReason : uint8_t {
  kNone,       // everything known but the last token was reused, or nothing was looked up
  kCold,       // no cached token stands at this place, or another one
  kEvicted,    // one stood there lately
  kWindow,     // more was cached, but not the window that its next token would see
  kNamespace,  // the open namespace has it, this one has not
  kLate,       // another lease computes it, but was not waited for (any longer)
  kNoRoom,     // one stands there, but taking it over leaves no room for the rest
  kOptedOut,   // PrefixReuse::kNone
  kLoadSlow,   // a tier has it, or is too slow to be asked, and computing is faster; or it did not come in time
  kChecksum,   // a tier had it, but not the bytes that were stored
  kOff,        // there is no prefix index
};

// Where known tokens and cached ones part. Both are of one namespace: another one's tokens are never told.
struct Divergence {
  int32_t position = -1;         // -1: nowhere, or not looked for
  std::optional<TokenId> token;  // cached at that position, behind the same tokens
};

// As clients and dashboards know it.
constexpr std::string_view to_string(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kCold:
      return "cold";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kWindow:
      return "window";
    case MissReason::kNamespace:
      return "namespace";
    case MissReason::kLate:
      return "late";
    case MissReason::kNoRoom:
      return "no_room";
    case MissReason::kOptedOut:
      return "opted_out";
    case MissReason::kLoadSlow:
      return "load_slow";
    case MissReason::kChecksum:
      return "checksum";
    case MissReason::kOff:
      return "off";
  }
  return "none";
}

}  // namespace pagoda::kv
