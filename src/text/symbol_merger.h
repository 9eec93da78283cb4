// merge_symbols: the loop that byte-level BPE and "llama" merging share: again and again join the adjacent pair of best priority.
// Ties go to the leftmost pair. Lower priority values win. Same result as llama.cpp's work queue, which pops (priority, left).
// Cost: O(n^2) in tiny arrays up to kFewSymbols, O(n log n) with a heap beyond; kMergeBytes a symbol.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
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

inline constexpr size_t kMergeBytes = 32;  // of memory, by symbol

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

// Heap entries are (priority << 32 | left symbol), smallest first: one integer compare gives the order. An entry is stale
// unless its priority is still that of the pair that starts at its left symbol. A merge takes one entry and adds two at most; when the heap
// is full its stale entries go. At least as many are stale as merges were made, so that happens O(log n) times.
// Memory: kMergeBytes a symbol, the symbols themselves included.
template <typename RuleOf>
void merge_many(std::vector<Symbol>& symbols, const RuleOf& rule_of) {
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  constexpr uint32_t kJoined = kEnd - 1;
  const uint32_t n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> previous(n), next(n);             // next is kJoined for a symbol that was joined into another
  std::vector<uint32_t> priorities(n, MergeRule::kNone);  // of the pair (i, next[i])
  std::vector<uint64_t> heap;
  heap.reserve(n);
  const auto key = [&](uint32_t left) { return static_cast<uint64_t>(priorities[left]) << 32 | left; };
  const auto is_stale = [&](uint64_t entry) { return priorities[static_cast<uint32_t>(entry)] != entry >> 32; };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == n ? kEnd : i + 1;
    if (i + 1 < n) priorities[i] = rule_of(symbols[i], symbols[i + 1]).priority;
    if (priorities[i] != MergeRule::kNone) heap.push_back(key(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>{});
  const auto update = [&](uint32_t left) {
    const uint32_t before = priorities[left];
    priorities[left] = next[left] == kEnd ? MergeRule::kNone : rule_of(symbols[left], symbols[next[left]]).priority;
    if (priorities[left] == MergeRule::kNone || priorities[left] == before) return;  // its entry is still there
    if (heap.size() == heap.capacity()) {
      std::erase_if(heap, is_stale);
      std::make_heap(heap.begin(), heap.end(), std::greater<>{});
    }
    heap.push_back(key(left));
    std::push_heap(heap.begin(), heap.end(), std::greater<>{});
  };
  while (!heap.empty()) {
    const uint64_t best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>{});
    heap.pop_back();
    const uint32_t left = static_cast<uint32_t>(best);
    if (is_stale(best)) continue;
    const uint32_t right = next[left];
    symbols[left].piece = rule_of(symbols[left], symbols[right]).piece;
    symbols[left].end = symbols[right].end;
    next[left] = next[right];
    next[right] = kJoined;
    priorities[left] = priorities[right] = MergeRule::kNone;
    if (next[left] != kEnd) previous[next[left]] = left;
    if (previous[left] != kEnd) update(previous[left]);
    update(left);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (next[i] != kJoined) symbols[kept++] = symbols[i];
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
