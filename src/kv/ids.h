// The ids that name cached memory. Plain data, no behaviour.
#pragma once

#include <array>
#include <cstdint>

#include "base/id.h"

namespace pagoda::kv {

inline constexpr int kBlockTokens = 32;  // token slots of one block

// A block of the pool: which extent of the arena, and which slot of it. Its address needs only the group's block size (view.h).
struct BlockId {
  static constexpr uint32_t kSlotBits = 14;
  uint32_t value = ~uint32_t{0};

  static constexpr BlockId at(uint32_t extent, uint32_t slot) { return BlockId{extent << kSlotBits | slot}; }
  constexpr uint32_t extent() const { return value >> kSlotBits; }
  constexpr uint32_t slot() const { return value & ((1u << kSlotBits) - 1); }
  constexpr bool is_none() const { return value == ~uint32_t{0}; }
  friend constexpr bool operator==(BlockId, BlockId) = default;
};
inline constexpr BlockId kNoBlock{};  // a window group's dropped block

using ModelId = Id<struct ModelIdTag, uint32_t>;
using GroupId = Id<struct GroupIdTag,
                   uint32_t>;  // attention group of one model: layers that keep the same tokens (gemma3: global, local)

// Names something the cache is waiting for: a tier's load, another request's chunks. Never reused; 0 names nothing.
using TicketId = Id<struct TicketIdTag, uint64_t>;

// A node of the prefix index. Only valid while somebody pins it.
using NodeId = Id<struct NodeIdTag, uint32_t>;
inline constexpr NodeId kNoNode{~uint32_t{0}};

// Who may share blocks: equal namespaces only. HMAC(server secret, tenant, salt); all zero where none is set.
struct CacheNamespace {
  std::array<uint64_t, 2> bits{};
  friend bool operator==(const CacheNamespace&, const CacheNamespace&) = default;
};

}  // namespace pagoda::kv
