// Request and Event: what a client asks and what it hears back. Plain data, the only engine header that dialects see.
// Everything random or clock-derived (id, seed, arrival) is fixed at intake, so a recorded request replays to the same tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/byte_budget.h"
#include "base/error.h"
#include "base/id.h"
#include "base/token_id.h"
#include "engine/cache_report.h"
#include "kv/session_name.h"

namespace pagoda::engine {

using RequestId = Id<struct RequestIdTag, uint64_t>;

// ---- what is asked -----------------------------------------------------------------------------------------------------------

struct TextPrompt {
  std::string text;  // tokenized with special tokens parsed and BOS as the model wants
};
struct TokenPrompt {
  std::vector<TokenId> tokens;  // taken as they are; ids are checked against the vocabulary
};
// Rendered by the model's chat template. JSON travels as text: only the text shim parses it.
struct ChatPrompt {
  enum class GenerationPrompt : uint8_t { kAdd, kOmit };
  std::string messages_json;         // array of {role, content, ...}
  std::string tools_json;            // array, or empty
  std::string template_kwargs_json;  // object with extra template variables, or empty
  GenerationPrompt generation_prompt = GenerationPrompt::kAdd;
  std::vector<std::string> message_texts{};  // what the messages say, in order: to explain misses
};
using Prompt = std::variant<TextPrompt, TokenPrompt, ChatPrompt>;

// Applied in this order: penalties, bias, (mask,) temperature, min_p, top_k, typical_p, top_p. Temperature 0 is greedy.
struct SamplingParams {
  float temperature = 1.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  int top_k = 0;                    // 0 or less: all
  float repetition_penalty = 1.0f;  // over prompt and output, as in vLLM
  float presence_penalty = 0.0f;    // over output only, as in OpenAI's API
  float frequency_penalty = 0.0f;
  std::vector<std::pair<TokenId, float>> logit_bias{};
};

struct StopParams {
  std::vector<std::string> strings;  // cut from the text where they match
  std::vector<TokenId> token_ids;
  enum class EndOfText : uint8_t { kStop, kIgnore } end_of_text = EndOfText::kStop;
  int min_tokens = 0;  // no end-of-text and no stop ids before that many
};

enum class Echo : uint8_t { kOff, kPrompt };

// What happens when prompt and answer outgrow the context (engine/context_policy.h).
struct ContextPolicy {
  enum class Kind : uint8_t {
    kRefuse,     // a prompt that is too long is refused, an answer ends where the context does
    kSinks,      // the first tokens and the recent ones stay
    kDropTurns,  // of a chat: the oldest turns go, system messages and the last turn stay
  };
  Kind kind = Kind::kRefuse;
  int keep_tokens = 4;  // kSinks: how many of the first ones
};
// As requests, answers and options name them, by Kind.
inline constexpr std::array<std::string_view, 3> kContextPolicyNames{"refuse", "sinks", "drop_turns"};
constexpr std::string_view to_string(ContextPolicy::Kind kind) {
  return kContextPolicyNames[static_cast<size_t>(kind)];
}
constexpr std::optional<ContextPolicy::Kind> parse_context_policy(std::string_view name) {
  for (size_t i = 0; i < kContextPolicyNames.size(); ++i) {
    if (kContextPolicyNames[i] == name) return static_cast<ContextPolicy::Kind>(i);
  }
  return std::nullopt;
}

// What its tenant may have of the machine while others want it too.
struct TenantShare {
  int weight = 1;    // computed tokens are shared out by it
  int priority = 0;  // the lower goes first, whatever the weights
};

struct Request {
  RequestId id;                       // set by Engine::submit
  int64_t arrival_us = 0;             // set by Engine::submit
  std::string model;                  // served name; empty: the only model
  std::string tenant;                 // empty: none
  std::string cache_space;            // whose cached prefixes it shares instead of its tenant's; empty: its tenant's
  TenantShare share{};                // of the tenant
  int priority = 0;                   // among the tenant's own requests; the lower goes first
  std::optional<int64_t> timeout_us;  // from its arrival on; none: it may take as long as it needs
  std::string cache_salt;             // empty: none
  std::string session_id;             // empty: none; kv::is_session_name
  std::optional<int> context_tokens;  // of its tenant, if fewer than the model's
  Prompt prompt;
  int n_choices = 1;
  std::optional<int>
      max_tokens;  // none: the rest of the context; clamped to it. Under a context policy: as many as the context has
  std::optional<ContextPolicy> context_policy;  // none: the server's
  SamplingParams sampling;
  StopParams stop;
  std::optional<uint64_t> seed;        // none: drawn at intake
  std::optional<int> logprobs;         // of generated tokens: how many alternatives to list (0: the chosen one only)
  std::optional<int> prompt_logprobs;  // of prompt tokens likewise
  Echo echo = Echo::kOff;              // the prompt's text comes first, with its logprobs where asked
  // What its texts and tokens are counted in, given back when the request is gone; null: nobody counts.
  std::shared_ptr<ByteReservation> memory{};
};

// ---- what is heard -----------------------------------------------------------------------------------------------------------

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kTimeout };

struct TokenLogprob {
  TokenId token;
  std::string bytes;             // the token's own bytes: not always whole UTF-8 characters
  std::optional<float> logprob;  // none for the first prompt token
  struct Alternative {
    TokenId token;
    std::string bytes;
    float logprob = 0.0f;
  };
  std::vector<Alternative> top;  // most likely first
};

// What a context policy dropped, over all choices; what the prompt lost at intake counts once.
struct ContextUsage {
  ContextPolicy::Kind policy = ContextPolicy::Kind::kRefuse;
  int edits = 0;
  int64_t dropped_tokens = 0;
  int dropped_turns = 0;  // the most that a choice lost
};

struct Usage {
  int prompt_tokens = 0;      // without what a context policy dropped
  int completion_tokens = 0;  // over all choices
  int cached_tokens = 0;      // prompt tokens whose KV was reused
  ContextUsage context{};
};

// In order: one Accepted, then per choice Deltas and one Finished, interleaved, and an Edited wherever a context policy dropped something.
// Or one Failed, at any point, and nothing after it.
struct Accepted {
  int prompt_tokens = 0;
  ContextUsage context{};  // what the prompt lost
};
struct Edited {
  ContextUsage context;  // so far
};
struct Delta {
  int choice = 0;
  std::string text;                    // whole UTF-8 characters; may be empty when only logprobs arrive
  std::vector<TokenId> tokens;         // that this text stands for
  std::vector<TokenLogprob> logprobs;  // of `tokens`, if asked
};
// Of the request until then.
struct Timing {
  int64_t queue_us = 0;    // tokenized, until its first row is computed
  int64_t prefill_us = 0;  // from there to its first token
  int64_t decode_us = 0;   // from there on
};
struct Finished {
  int choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::string stop_string;                     // the stop string that matched, if one did
  std::optional<TokenId> stop_token;           // the stop id that was drawn, if one was
  Usage usage;                                 // so far, over all choices
  std::shared_ptr<const CacheReport> cache{};  // null: not asked for
  Timing timing{};
};
struct Failed {
  Error error;
};
using Event = std::variant<Accepted, Edited, Delta, Finished, Failed>;

}  // namespace pagoda::engine
