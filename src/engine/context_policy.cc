#include "engine/context_policy.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pagoda::engine {
namespace {

int half_window(int kept_tokens, int context_tokens) { return (context_tokens - kept_tokens) / 2; }

// [0, n_keep) and [n_keep + n_dropped, end)
std::vector<TokenId> without(std::span<const TokenId> tokens, int n_keep, int n_dropped) {
  std::vector<TokenId> rest;
  rest.reserve(tokens.size() - static_cast<size_t>(n_dropped));
  rest.assign(tokens.begin(), tokens.begin() + n_keep);
  rest.insert(rest.end(), tokens.begin() + n_keep + n_dropped, tokens.end());
  return rest;
}

// The prompts of one conversation, each rendered once.
class TurnPlanner {
 public:
  TurnPlanner(std::vector<TokenId> prompt, int n_droppable, const RenderWithout& render)
      : n_droppable_(n_droppable), render_(render), prompts_{{0, std::move(prompt)}} {}

  int n_droppable() const { return n_droppable_; }
  // Never null; stays where it is.
  Result<const std::vector<TokenId>*> prompt(int n_turns) {
    auto known = prompts_.find(n_turns);
    if (known == prompts_.end()) {
      TRY_ASSIGN(std::vector<TokenId> rendered, render_(n_turns));
      known = prompts_.emplace(n_turns, std::move(rendered)).first;
    }
    return &known->second;
  }
  // May be negative: a template is free to write more about less.
  Result<int> dropped_tokens(int n_turns) {
    TRY_ASSIGN(const std::vector<TokenId>* rest, prompt(n_turns));
    return static_cast<int>(prompts_.at(0).size()) - static_cast<int>(rest->size());
  }
  // The fewest turns, but more than `after`, that have target_tokens; all if there are not so many.
  Result<int> fewest(int after, int64_t target_tokens) {
    int low = after + 1, high = n_droppable_;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      TRY_ASSIGN(const int dropped, dropped_tokens(middle));
      if (dropped >= target_tokens) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

 private:
  const int n_droppable_;
  const RenderWithout& render_;
  std::map<int, std::vector<TokenId>> prompts_;  // by dropped turns
};

// What to drop each time the answer has filled the context. A prompt that frees nothing is none.
Result<std::vector<TurnCut>> next_cuts(TurnPlanner& planner, const TurnCut& first, int context_tokens) {
  std::vector<TurnCut> cuts;
  const int half = half_window(0, context_tokens);
  size_t prompt_tokens = first.prompt.size();
  for (int n_turns = first.dropped_turns; n_turns < planner.n_droppable();) {
    TRY_ASSIGN(const int dropped, planner.dropped_tokens(n_turns));
    TRY_ASSIGN(n_turns, planner.fewest(n_turns, int64_t{half} * (std::max(0, dropped) / half + 1)));
    TRY_ASSIGN(const std::vector<TokenId>* prompt, planner.prompt(n_turns));
    if (prompt->size() >= prompt_tokens) continue;
    prompt_tokens = prompt->size();
    cuts.push_back({n_turns, *prompt});
  }
  return cuts;
}

}  // namespace

int tokens_to_drop(int64_t n_tokens, int kept_tokens, int context_tokens, int most_tokens) {
  const int64_t half = half_window(kept_tokens, context_tokens);
  const int64_t over = n_tokens - most_tokens;
  return over <= 0 ? 0 : static_cast<int>((over + half - 1) / half * half);
}

ContextEdit drop_window(std::span<const TokenId> tokens, int keep_tokens, int context_tokens, int most_tokens) {
  const int n = tokens_to_drop(static_cast<int64_t>(tokens.size()), keep_tokens, context_tokens, most_tokens);
  return {.tokens = without(tokens, n == 0 ? 0 : keep_tokens, n), .dropped_tokens = n, .dropped_turns = 0};
}

Result<TurnPrompts> plan_turns(std::vector<TokenId> prompt, int n_droppable, int context_tokens, int most_tokens,
                               int most_answer_tokens, const RenderWithout& render) {
  const auto n_prompt = static_cast<int64_t>(prompt.size());
  TurnPlanner planner(std::move(prompt), n_droppable, render);
  TurnPrompts out;
  const int to_drop = tokens_to_drop(n_prompt, 0, context_tokens, most_tokens);
  if (to_drop > 0 && n_droppable > 0) {
    TRY_ASSIGN(out.first.dropped_turns, planner.fewest(0, to_drop));
  }
  TRY_ASSIGN(const std::vector<TokenId>* first, planner.prompt(out.first.dropped_turns));
  out.first.prompt = *first;
  const auto n_first = static_cast<int64_t>(first->size());
  if (n_first > most_tokens) {
    return fail(
        Error{ErrorCode::kContextExceeded,
              fmt::format("the prompt has {} tokens, its system messages and last turn alone {}, but the "
                          "context holds {}{}",
                          n_prompt, n_first, context_tokens, most_tokens < context_tokens ? " with the answer" : ""),
              "messages"});
  }
  if (n_first + int64_t{most_answer_tokens} > context_tokens) {
    TRY_ASSIGN(out.next, next_cuts(planner, out.first, context_tokens));
  }
  return out;
}

void count_edit(const ContextEdit& edit, ContextUsage& usage) {
  ++usage.edits;
  usage.dropped_tokens += edit.dropped_tokens;
  usage.dropped_turns = std::max(usage.dropped_turns, edit.dropped_turns);
}

int answer_tokens_behind(int prompt_tokens, int context_tokens, int asked_tokens) {
  const int left = context_tokens - prompt_tokens;
  return half_window(prompt_tokens, context_tokens) >= context_tokens / 8 ? asked_tokens : std::min(asked_tokens, left);
}

ContextEdit ContextWindow::edit(std::span<const TokenId> tokens) {
  const int most_tokens = plan_.context_tokens - 1;
  if (plan_.policy == ContextPolicy::Kind::kSinks) {
    return drop_window(tokens, plan_.keep_tokens, plan_.context_tokens, most_tokens);
  }
  if (next_cut_ == plan_.cuts.size()) return drop_window(tokens, prompt_tokens_, plan_.context_tokens, most_tokens);
  const TurnCut& cut = plan_.cuts[next_cut_++];
  ContextEdit out{.tokens = cut.prompt,
                  .dropped_tokens = prompt_tokens_ - static_cast<int>(cut.prompt.size()),
                  .dropped_turns = cut.dropped_turns};
  out.tokens.insert(out.tokens.end(), tokens.begin() + prompt_tokens_, tokens.end());
  prompt_tokens_ = static_cast<int>(cut.prompt.size());
  return out;
}

}  // namespace pagoda::engine
