#include "engine/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"

namespace pagoda::engine {
namespace {

std::optional<uint64_t> number_in(const char* path) {
  uint64_t value = 0;
  if (std::ifstream file(path); file >> value) return value;
  return std::nullopt;
}

uint64_t cgroup_room_bytes() {
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return std::numeric_limits<uint64_t>::max();
  return *limit - std::min(*limit, *used);
}

uint64_t blocks_held(const models::AttentionGroup& group, int n_tokens, int chunk_tokens) {
  const int held = group.window == 0 ? n_tokens : std::min(n_tokens, group.window + chunk_tokens + kv::kBlockTokens);
  return static_cast<uint64_t>((held + kv::kBlockTokens - 1) / kv::kBlockTokens);
}

}  // namespace

uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (uint64_t kib = 0; file >> key >> kib; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (key == "MemAvailable:") return std::min(kib * 1024, cgroup_room_bytes());
  }
  return cgroup_room_bytes();
}

uint64_t context_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens) {
  uint64_t bytes = 0;
  for (const models::AttentionGroup& group : groups)
    bytes += blocks_held(group, n_tokens, chunk_tokens) * group.layout.block_bytes;
  return bytes;
}

uint64_t shared_budget_bytes(std::span<const models::AttentionGroup> groups, uint64_t n_sequences, int n_tokens,
                             int chunk_tokens, uint64_t extent_bytes) {
  uint64_t n_extents = 0;
  for (const models::AttentionGroup& group : groups) {
    const uint64_t slots = extent_bytes / group.layout.block_bytes;
    const uint64_t n_blocks =
        (n_sequences - 1) * blocks_held(group, n_tokens, 0) + blocks_held(group, n_tokens, chunk_tokens);
    n_extents += (n_blocks + slots - 1) / slots;
  }
  return n_extents * extent_bytes;
}

uint64_t least_budget_bytes(std::span<const models::AttentionGroup> groups, int n_tokens, int chunk_tokens,
                            uint64_t extent_bytes) {
  return shared_budget_bytes(groups, 1, n_tokens, chunk_tokens, extent_bytes);
}

std::string memory_statement(uint64_t weight_bytes, uint64_t kv_bytes) {
  const auto mib = [](uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
  return fmt::format(
      "memory: {:.1f} MiB of weights, at most {:.1f} MiB of KV (--kv-memory); at most about {:.0f} MiB resident",
      mib(weight_bytes), mib(kv_bytes), mib(weight_bytes + kv_bytes + kOtherBytes));
}

uint64_t kv_budget_bytes(std::optional<uint64_t> asked, uint64_t one_context_bytes, uint64_t available_bytes) {
  return asked.value_or(std::min(available_bytes / 4, kAutoContexts * one_context_bytes));
}

}  // namespace pagoda::engine
