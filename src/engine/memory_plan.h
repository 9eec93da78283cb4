// Sizes of KV budgets: what contexts take, and how much the cache gets when nobody says.   Units: bytes, tokens.
#pragma once

#include <cstdint>
#include <span>

#include "models/blocks.h"

namespace pagoda::engine {

inline constexpr int kAutoContexts = 16;  // full contexts that the automatic budget holds at most

// Of a budget that all groups' blocks lie in.
size_t extent_bytes_of(std::span<const models::AttentionGroup> groups);

// KV bytes of one sequence of n_tokens, blocks rounded up; window groups hold their window, one block and a chunk.
uint64_t context_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens);

// The smallest budget that holds n_sequences of n_tokens each, one of which is being prefilled by chunks while the others hold no more than
// their windows: each group's blocks lie in extents of their own. Beside them one of rest_tokens, which is the one prefilled if it is alone.
uint64_t shared_budget_bytes(std::span<const models::AttentionGroup> groups, uint64_t n_sequences, int n_tokens,
                             int chunk_tokens, uint64_t extent_bytes, int rest_tokens = 0);

// The same for one sequence.
uint64_t least_budget_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens,
                            uint64_t extent_bytes);

// A quarter of available memory, but at most kAutoContexts contexts.
uint64_t auto_budget_bytes(uint64_t one_context_bytes, uint64_t available_bytes);

}  // namespace pagoda::engine
