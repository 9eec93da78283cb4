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
    return static_cast<size_t>(std::min<uint64_t>(kMostBodyBytes, traffic_bytes / 32));
  }
  size_t most_body_bytes() const { return most_body_bytes(bytes); }

  // Of a session's blocks, so that a part of them is a body: the rest of it names them.
  static constexpr size_t most_part_bytes(size_t body_bytes) { return std::min(kMostPartBytes, body_bytes / 8 * 7); }
  size_t most_part_bytes() const { return most_part_bytes(most_body_bytes()); }

  const uint64_t bytes;
  const uint64_t small_work_bytes;  // what a worker may take without asking: small requests wait for nobody
  ByteBudget held;
  ByteBudget work;
};

}  // namespace pagoda::engine
