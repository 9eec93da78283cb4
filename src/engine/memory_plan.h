// How much memory the KV cache gets when nobody says, and what context that leaves. Units: bytes, tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "models/blocks.h"

namespace pagoda::engine {

inline constexpr int kAutoContexts = 16;  // full contexts that the automatic budget holds at most

// What the system would give now: MemAvailable, or the cgroup's limit less its use.
uint64_t available_memory_bytes();

// KV bytes of one sequence of n_tokens, blocks rounded up; window groups hold their window, one block and a chunk.
uint64_t context_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens);

// The smallest budget that holds n_sequences of n_tokens each, one of which is being prefilled by chunks while the others hold no more than
// their windows: each group's blocks lie in extents of their own.
uint64_t shared_budget_bytes(std::span<const models::AttentionGroup> groups, uint64_t n_sequences, int n_tokens,
                             int chunk_tokens, uint64_t extent_bytes);

// The same for one sequence.
uint64_t least_budget_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens,
                            uint64_t extent_bytes);

// What the process will hold, as one line for the log: weights are resident once loaded, KV becomes so as sequences grow, and the rest
// (program, activations, what loading needs for a moment) stays within kOtherBytes.
inline constexpr uint64_t kOtherBytes = uint64_t{64} << 20;
std::string memory_statement(uint64_t weight_bytes, uint64_t kv_bytes);

// `asked`, or a quarter of available memory but at most kAutoContexts contexts.
uint64_t kv_budget_bytes(std::optional<uint64_t> asked, uint64_t one_context_bytes, uint64_t available_bytes);

}  // namespace pagoda::engine
