// Accounting: where the bytes of the KV budget are, which block lies where, and what the cache would gain from more. Made when asked.
//
//   budget = live + cached + free + overhead                                  of the pool
//   live slots of a group = tokens stored + slots reserved + slots wasted     32 to a block
//
// Pure functions over what the engine thread owns: on that thread, between steps, with every lease that holds blocks of these caches.
// Cost: account_of O(leases * groups), nothing per cached block; block_map_page O(kMapSlots), or one extent's slots.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache.h"
#include "kv/lease.h"
#include "kv/sessions.h"

namespace pagoda::kv {

struct GroupAccount {
  int32_t window_tokens = 0;
  uint64_t block_bytes = 0;
  uint64_t live_blocks = 0;
  uint64_t cached_blocks = 0;
  uint64_t free_blocks = 0;      // stranded: slots of the group's extents, which no other group can use
  uint64_t logical_tokens = 0;   // committed, summed over the sequences that hold them
  uint64_t stored_tokens = 0;    // the same, each shared one once
  uint64_t reserved_tokens = 0;  // slots granted for tokens that are not committed: reserved and unused
  uint64_t wasted_tokens = 0;    // slots of open blocks behind the last granted one: internal waste
};

struct ModelAccount {
  ModelId model;
  std::vector<GroupAccount> groups;  // by GroupId
};

struct Account {
  PoolStats pool;
  uint64_t extent_bytes = 0;
  uint64_t n_extents = 0;
  uint64_t descriptor_bytes = 0;  // of the pool itself, outside the budget
  std::vector<ModelAccount> models;
  std::optional<PrefixStats> index;      // none: no prefixes are kept
  std::optional<SessionStats> sessions;  // none: there are no sessions
  std::optional<ReuseCurve> reuse;       // none: it is not measured
  uint64_t reuse_bytes = 0;              // of measuring it, outside the budget
};

// Bytes of a number of tokens of the group, of all groups of all models.
template <typename Member>
uint64_t sum_bytes(const Account& account, Member GroupAccount::* tokens) {
  uint64_t bytes = 0;
  for (const ModelAccount& model : account.models) {
    for (const GroupAccount& group : model.groups) bytes += group.*tokens * (group.block_bytes / kBlockTokens);
  }
  return bytes;
}

// `caches`: all of the pool.
Account account_of(const BlockPool& pool, std::span<const Cache* const> caches, std::span<const KvLease* const> leases);

struct SlotView {
  BlockState state = BlockState::kFree;
  uint32_t n_holders = 0;
};
struct ExtentView {
  uint32_t extent = 0;
  ModelId model;
  GroupId group;
  ClassId size_class;
  std::vector<SlotView> slots;
};
// Extents [first_extent, first_extent + n_extents) of the arena; those that belong to nobody are left out.
struct BlockMapPage {
  uint64_t page = 0;
  uint64_t n_pages = 0;  // at least 1
  uint32_t first_extent = 0;
  uint32_t n_extents = 0;
  std::vector<ExtentView> extents;
};

inline constexpr uint32_t kMapSlots = 4096;  // of one page, or one extent if that has more

// A page behind the last one is empty.
BlockMapPage block_map_page(const BlockPool& pool, std::span<const Cache* const> caches, uint64_t page);

}  // namespace pagoda::kv
