#include "engine/memory_plan.h"

#include <algorithm>
#include <vector>

#include "kv/block_pool.h"

namespace pagoda::engine {
namespace {

uint64_t blocks_held(const models::AttentionGroup& group, int n_tokens, int chunk_tokens) {
  const int held = group.window == 0 ? n_tokens : std::min(n_tokens, group.window + chunk_tokens + kv::kBlockTokens);
  return static_cast<uint64_t>((held + kv::kBlockTokens - 1) / kv::kBlockTokens);
}

}  // namespace

size_t extent_bytes_of(std::span<const models::AttentionGroup> groups) {
  std::vector<size_t> block_bytes;
  for (const models::AttentionGroup& group : groups) block_bytes.push_back(group.layout.block_bytes);
  return kv::choose_extent_bytes(block_bytes);
}

uint64_t context_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens) {
  uint64_t bytes = 0;
  for (const models::AttentionGroup& group : groups)
    bytes += blocks_held(group, n_tokens, chunk_tokens) * group.layout.block_bytes;
  return bytes;
}

uint64_t shared_budget_bytes(std::span<const models::AttentionGroup> groups, uint64_t n_sequences, int n_tokens,
                             int chunk_tokens, uint64_t extent_bytes, int rest_tokens) {
  uint64_t n_extents = 0;
  for (const models::AttentionGroup& group : groups) {
    const uint64_t slots = extent_bytes / group.layout.block_bytes;
    uint64_t n_blocks = blocks_held(group, rest_tokens, n_sequences == 0 ? chunk_tokens : 0);
    if (n_sequences > 0)
      n_blocks += (n_sequences - 1) * blocks_held(group, n_tokens, 0) + blocks_held(group, n_tokens, chunk_tokens);
    n_extents += (n_blocks + slots - 1) / slots;
  }
  return n_extents * extent_bytes;
}

uint64_t least_budget_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens,
                            uint64_t extent_bytes) {
  return shared_budget_bytes(groups, 1, n_tokens, chunk_tokens, extent_bytes);
}

uint64_t auto_budget_bytes(uint64_t one_context_bytes, uint64_t available_bytes) {
  return std::min(available_bytes / 4, kAutoContexts * one_context_bytes);
}

}  // namespace pagoda::engine
