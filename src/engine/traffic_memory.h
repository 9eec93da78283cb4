// TrafficMemory: what clients may make the process hold, beside weights, overhead and KV. In two halves:
//
//   held   request bodies, requests until they end, answers until they are read: as long as clients please, so without room a request is refused
//   work   parsing, templates and tokenizing, while they run: who finds no room waits, because that work ends by itself
//
// Memory for either is reserved before it is allocated.
// Threads: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/byte_budget.h"

namespace pagoda::engine {

// Without a memory limit; it is not taken before clients do.
inline constexpr uint64_t kMostTrafficBytes = uint64_t{1} << 30;
inline constexpr uint64_t kLeastTrafficBytes = uint64_t{4} << 20;

struct TrafficMemory {
  static constexpr size_t kMostBodyBytes = size_t{16} << 20;
  static constexpr uint64_t kBodyShare = 32;  // of traffic, the largest body
  static constexpr size_t kMostPartBytes = size_t{4} << 20;
  // Of a body, as dialects read it: the bytes, the text of the messages, and their strings apart.
  static constexpr size_t kBodyCopies = 3;

  static constexpr uint64_t kWorkers = 4;  // threads that work on what clients sent: two of intake, serve's, and io

  explicit TrafficMemory(uint64_t traffic_bytes = kMostTrafficBytes)
      : bytes(traffic_bytes),
        small_work_bytes(traffic_bytes / 32),
        held(traffic_bytes / 2),
        work(traffic_bytes / 2 - kWorkers * small_work_bytes) {}

  // Of that size it can be held, parsed (api/json_fields.h) and rendered (text/chat_template.h).
  static constexpr size_t most_body_bytes(uint64_t traffic_bytes) {
    return static_cast<size_t>(std::min<uint64_t>(kMostBodyBytes, traffic_bytes / kBodyShare));
  }
  size_t most_body_bytes() const { return most_body_bytes(bytes); }

  // A part of a session is a body: what it has beside blocks, for as long as a context (kv/session_part.h); and the blocks.
  static constexpr size_t part_head_bytes(int context_tokens) { return 4096 + 8 * static_cast<size_t>(context_tokens); }
  size_t most_part_bytes(int context_tokens) const {
    const size_t head_bytes = part_head_bytes(context_tokens);
    return std::min(kMostPartBytes, most_body_bytes() - std::min(most_body_bytes(), head_bytes));
  }
  // So that a body holds a part with that much of blocks.
  static constexpr uint64_t least_bytes(size_t blocks_bytes, int context_tokens) {
    return std::max<uint64_t>(kLeastTrafficBytes, kBodyShare * (blocks_bytes + part_head_bytes(context_tokens)));
  }

  const uint64_t bytes;
  const uint64_t small_work_bytes;  // what a worker may take without asking: small requests wait for nobody
  ByteBudget held;
  ByteBudget work;
};

}  // namespace pagoda::engine
