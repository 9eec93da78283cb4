// Context policies: what a request goes on with when its context is full (docs/context_policies.md). Every edit is a pure function of the
// token list, the context and, for turns, the prompt's renderings: the edited list is prefilled like a prompt, its positions begin at 0
// again, and logits are those of a fresh request with that list.
//
//   sinks        [0 .. keep) (dropped) [.......)                          half of what is not kept is dropped at once
//   drop_turns   [system .. (turn turn) turn .. last turn][answer ......) as many whole turns as make up half the context, oldest first;
//                [system .. last turn][(dropped) answer ...)              when only the last is left, half of the answer's room
//
// What a growing conversation drops comes in multiples of those halves, so its next requests are cut at the same place and find the
// cached prefix of the last one.
// Units: tokens.     Threads: pure.     Errors: what cannot fit is kContextExceeded with both numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/token_id.h"
#include "engine/request.h"

namespace pagoda::engine {

inline constexpr int kMostAnswerTokens = 1 << 17;   // under a policy: what nobody has read yet is held in memory
inline constexpr int kMinPolicyContextTokens = 16;  // shorter contexts have no halves worth keeping

// A conversation's prompt without its oldest turns.
struct TurnCut {
  int dropped_turns = 0;
  std::vector<TokenId> prompt;
};

// What the choices of a request share. Made at intake.
struct ContextPlan {
  ContextPolicy::Kind policy = ContextPolicy::Kind::kRefuse;
  int context_tokens = 0;
  int keep_tokens = 0;  // kSinks
  std::vector<TurnCut>
      cuts;  // kDropTurns: the prompts that replace the first one, in their order, each shorter than the one before
};

struct ContextEdit {
  std::vector<TokenId> tokens;
  int dropped_tokens = 0;
  int dropped_turns = 0;  // that the list is without by now; 0 if the edit dropped none
};

// The fewest tokens, in multiples of half the window (the context without what is kept), that leave at most most_tokens of n_tokens.
// Requires kept_tokens <= context_tokens / 2, kMinPolicyContextTokens.
int tokens_to_drop(int64_t n_tokens, int kept_tokens, int context_tokens, int most_tokens);

// kSinks: `tokens` cut to at most most_tokens; all of them if they fit. Requires as tokens_to_drop.
ContextEdit drop_window(std::span<const TokenId> tokens, int keep_tokens, int context_tokens, int most_tokens);

// The prompt without its n oldest turns.
using RenderWithout = std::function<Result<std::vector<TokenId>>(int n_turns)>;

// kDropTurns: the prompts of a conversation, of which the last turn stays.
struct TurnPrompts {
  TurnCut first;              // the prompt to begin with: nothing dropped if all fits
  std::vector<TurnCut> next;  // when the answer has filled the context: ContextPlan::cuts
};
// `prompt`: with nothing dropped. most_answer_tokens: no `next` if that many fit behind the first prompt.
// kContextExceeded if even the last turn has more than most_tokens. Cost: O(log n) renderings for each prompt.
Result<TurnPrompts> plan_turns(std::vector<TokenId> prompt, int n_droppable, int context_tokens, int most_tokens,
                               int most_answer_tokens, const RenderWithout& render);

// Adds what the edit dropped.
void count_edit(const ContextEdit& edit, ContextUsage& usage);

// How many tokens an answer can have whose prompt cannot be cut any more: all that are asked for, or only what is left where too little
// room remains to make edits rare.
int answer_tokens_behind(int prompt_tokens, int context_tokens, int asked_tokens);

// One choice's place in the plan.
class ContextWindow {
 public:
  // `plan` must outlive it. n_prompt: tokens of the first list.
  ContextWindow(const ContextPlan& plan, int prompt_tokens) : plan_(plan), prompt_tokens_(prompt_tokens) {}

  // Whether a list of so many tokens has no room for another. Never where the policy is to refuse.
  bool is_full(int n_tokens) const {
    return plan_.policy != ContextPolicy::Kind::kRefuse && n_tokens >= plan_.context_tokens;
  }
  // What follows a full list.
  ContextEdit edit(std::span<const TokenId> tokens);

 private:
  const ContextPlan& plan_;
  int prompt_tokens_;    // at the head of the list, kDropTurns
  size_t next_cut_ = 0;  // of plan_.cuts
};

}  // namespace pagoda::engine
