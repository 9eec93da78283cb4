// TokenId: a token's number in its model's vocabulary. The one domain word of base, because text, kv, models and engine share it
// and may not see each other. Same size and bits as int32_t, so spans of it cross C interfaces as they are.
#pragma once

#include <cstdint>

#include "base/id.h"

namespace pagoda {

using TokenId = Id<struct TokenIdTag, int32_t>;
static_assert(sizeof(TokenId) == sizeof(int32_t));

}  // namespace pagoda
