// What it costs to generate N tokens one after another, with a KV cache and without.
//   of one layer of width D, constants left out   without: token i computes i rows again   N^2 D^2 + N^3 D
//                                                 with:    token i computes one row        N D^2 + N^2 D
//   of a model: operations and least time of every step, as limits.h counts them
// Pure.     Units: operations (a product and its addition are two), seconds, tokens.
#pragma once

#include <optional>
#include <vector>

#include "tools/limits.h"

namespace pagoda::tools {

struct GenerationWay {
  double textbook = 0;
  double weight_ops = 0;     // the N^2 D^2, or N D^2
  double attention_ops = 0;  // the N^3 D, or N^2 D
  double seconds = 0;        // at least; 0 without rates

  double ops() const { return weight_ops + attention_ops; }
};

struct GenerationCost {
  int n_tokens = 0;
  GenerationWay cached;
  GenerationWay uncached;
};

// Of each of the lengths, which ascend.  Cost: O(last length).
std::vector<GenerationCost> generation_costs(const ModelCosts& costs, int embed_dim, const std::vector<int>& lengths,
                                             const std::optional<MachineRates>& rates);

// 1, 4, 16 ... and `most` itself, or kMostGenerated if that is less.
inline constexpr int kMostGenerated = 1 << 17;
std::vector<int> generation_lengths(int most);

}  // namespace pagoda::tools
