// CacheReport: what a request's prompt took from the cache, and why it took no more. Plain data on its way to the client: the answer's
// header and GET /v1/requests/{id}/cache show it. Of several choices it tells of the first: the others find what that one computes.
// It holds tokens of the request itself and of its own namespace, of no other.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_id.h"
#include "kv/miss.h"

namespace pagoda::text {
class Tokenizer;
}
namespace pagoda::sched {
struct CacheUse;
}

namespace pagoda::engine {

struct CacheReport {
  struct Token {
    TokenId id;
    std::string bytes;  // not always whole UTF-8 characters
  };
  // Where the prompt and what is cached part.
  struct Divergence {
    int32_t position = 0;
    Token asked;
    std::optional<Token> cached;  // none: nothing is cached there
  };
  struct Miss {
    int32_t position = 0;  // of the first token that was computed for it
    kv::MissReason reason = kv::MissReason::kNone;
    int32_t n_edits = 0;       // of the context before it: position counts in what they left
    bool is_template = false;  // cold, but another token is cached there, and this one is the chat template's own
    std::string_view word() const { return is_template ? "template" : to_string(reason); }
  };

  // Who holds what the request leaves.
  struct Session {
    std::string id;
    int32_t held_tokens = 0;  // in whole blocks
  };

  struct TierTokens {
    std::string tier;
    int32_t tokens = 0;
  };

  int32_t prompt_tokens = 0;
  int32_t reused_tokens = 0;  // of the prompt
  int32_t copied_tokens = 0;  // of those, by copy-on-write
  int32_t recomputed_tokens = 0;
  int32_t preemptions = 0;
  int64_t waited_us = 0;       // for rows that other requests computed
  int64_t load_waited_us = 0;  // for blocks that a tier had
  std::optional<Divergence> divergence;
  std::optional<Session> session;
  std::vector<Miss> misses;       // the first few, by time
  std::vector<TierTokens> tiers;  // of the reused ones, those that a tier below RAM gave; each tier there is

  int32_t computed_tokens() const { return prompt_tokens - reused_tokens; }
  kv::MissReason first_miss() const { return misses.empty() ? kv::MissReason::kNone : misses[0].reason; }
  std::string_view first_miss_word() const { return misses.empty() ? "none" : misses[0].word(); }
};

// `message_texts`: of a chat prompt (template_text.h).
CacheReport make_cache_report(const sched::CacheUse& use, std::span<const TokenId> prompt,
                              std::span<const std::string> message_texts, const text::Tokenizer& tokenizer);

}  // namespace pagoda::engine
