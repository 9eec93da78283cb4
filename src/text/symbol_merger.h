// merge_symbols: the loop that byte-level BPE and "llama" merging share: again and again join the adjacent pair of best priority.
// Ties go to the leftmost pair. Lower priority values win. Same result as llama.cpp's work queue, which pops (priority, left).
// Cost: O(n^2) in tiny arrays up to kFewSymbols, O(n log n) with a heap beyond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

namespace pagoda::text {

struct Symbol {
  uint32_t begin = 0, end = 0;  // bytes of the text being merged
  int32_t piece = -1;           // what the merger's own rule calls it
};

struct MergeRule {
  uint32_t priority = kNone;  // kNone: the pair does not merge
  int32_t piece = -1;         // of the joined symbol
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
};

namespace merge_internal {

constexpr size_t kFewSymbols = 40;

template <typename RuleOf>
void merge_few(std::vector<Symbol>& symbols, const RuleOf& rule_of) {
  MergeRule rules[kFewSymbols];
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) rules[i] = rule_of(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (rules[i].priority < rules[best].priority) best = i;
    }
    if (rules[best].priority == MergeRule::kNone) break;
    symbols[best].end = symbols[best + 1].end;
    symbols[best].piece = rules[best].piece;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      rules[i] = rules[i + 1];
    }
    --n;
    if (best > 0) rules[best - 1] = rule_of(symbols[best - 1], symbols[best]);
    if (best + 1 < n) rules[best] = rule_of(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

struct Candidate {
  uint32_t priority;
  uint32_t left, right;  // symbol numbers
  uint32_t end;          // of the right symbol when the pair was seen: tells a stale candidate
  int32_t piece;
  bool operator<(const Candidate& o) const { return priority != o.priority ? priority > o.priority : left > o.left; }
};

template <typename RuleOf>
void merge_many(std::vector<Symbol>& symbols, const RuleOf& rule_of) {
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  const uint32_t n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> previous(n), next(n);
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == n ? kEnd : i + 1;
  }
  std::vector<bool> gone(n, false);
  std::priority_queue<Candidate> queue;
  const auto offer = [&](uint32_t left, uint32_t right) {
    if (left == kEnd || right == kEnd) return;
    const MergeRule rule = rule_of(symbols[left], symbols[right]);
    if (rule.priority != MergeRule::kNone) queue.push({rule.priority, left, right, symbols[right].end, rule.piece});
  };
  for (uint32_t i = 0; i + 1 < n; ++i) offer(i, i + 1);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    if (gone[c.left] || gone[c.right] || next[c.left] != c.right || symbols[c.right].end != c.end) continue;
    symbols[c.left].end = c.end;
    symbols[c.left].piece = c.piece;
    gone[c.right] = true;
    next[c.left] = next[c.right];
    if (next[c.left] != kEnd) previous[next[c.left]] = c.left;
    offer(previous[c.left], c.left);
    offer(c.left, next[c.left]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!gone[i]) symbols[kept++] = symbols[i];
  }
  symbols.resize(kept);
}

}  // namespace merge_internal

// symbols: adjacent and in order on entry and on return. rule_of(left, right) -> MergeRule, a pure function.
template <typename RuleOf>
void merge_symbols(std::vector<Symbol>& symbols, const RuleOf& rule_of) {
  if (symbols.size() <= merge_internal::kFewSymbols) {
    merge_internal::merge_few(symbols, rule_of);
  } else {
    merge_internal::merge_many(symbols, rule_of);
  }
}

}  // namespace pagoda::text
