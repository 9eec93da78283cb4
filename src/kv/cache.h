// Cache: decides which blocks hold one model instance's tokens. It sees leases and token ids, never sequences or bytes.
//
//   admit -> (the step writes K and V) -> commit       before every chunk, decode and draft row alike
//                                      -> rollback     drafts that were not accepted, a step that failed
//   release                                            at the end, or when preempted
//
// Units: tokens and positions (int32), blocks of 32 tokens.   Owns: the references in every lease's tables; the pool owns the blocks.
// Invariants: (1) each group's table covers [0, n_written).  (2) a block is sealed <=> its last token is committed.
//             (3) a window group drops a block once no later query can see it.   check_integrity(leases): tests and idle.
// Threads: engine thread only.   Errors: no room and waiting are in the return type; a lease of another model is a bug -> CHECK.
// Cost: O(new blocks); no allocation but the growth of a lease's tables.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/token_id.h"
#include "kv/block_op.h"
#include "kv/block_pool.h"
#include "kv/ids.h"
#include "kv/lease.h"

namespace pagoda::kv {

// One attention group of the model: its blocks' size, and how far back its layers look.
struct GroupSpec {
  size_t block_bytes = 0;
  int32_t window_tokens = 0;  // a query at position p sees t > p - window_tokens; 0: all of them
};

// Names something the cache is waiting for: a tier's load, another request's chunks. Never reused.
using TicketId = Id<struct TicketIdTag, uint64_t>;

// The blocks are there; ops were appended to the caller's list.
struct Granted {
  int32_t reused_tokens = 0;  // tokens found in the cache and taken over: the step starts behind them
};
// Ask again when the ticket completes or its deadline passes, whichever is first.
struct WaitOn {
  TicketId ticket;
  int64_t deadline_us = 0;
};
// Nothing changed.
struct NoSpace {
  size_t bytes = 0;  // that must become free first
};
using Admission = std::variant<Granted, WaitOn, NoSpace>;

class Cache {
 public:
  // Registers a size class per group. GroupId is the index in `groups`; at least one. The pool must outlive the cache.
  Cache(BlockPool& pool, ModelId model, std::span<const GroupSpec> groups);
  virtual ~Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  ModelId model() const { return model_; }
  size_t n_groups() const { return groups_.size(); }
  const GroupSpec& group(GroupId id) const { return groups_[id.value].spec; }
  BlockPool& pool() const { return pool_; }

  // The longest context that the whole budget can hold for one sequence alone, in chunks of one token if need be. Constant.
  int32_t capacity_tokens() const { return capacity_tokens_; }

  // Room for token_ids[n_written, n_written + n_new), in all groups or in none; n_written advances by n_new when granted. `token_ids` are
  // all tokens of the sequence that are known, and begin with those the lease already holds. Every newly opened block gets a kZero op.
  // Virtual, so that schedulers can be tested against a cache that makes them wait.
  virtual Admission admit(KvLease& lease, std::span<const TokenId> token_ids, int32_t n_new, std::vector<BlockOp>& ops);

  // Whether a sequence could be brought to n_tokens in chunks of at most max_chunk, with `spare` more blocks left in every group, without
  // anyone else giving up a block. An estimate for admission: it reserves nothing.
  bool has_room(const KvLease& lease, int32_t n_tokens, int32_t max_chunk, uint32_t spare) const;

  // The next n written tokens are final: full blocks are sealed, and blocks that left a group's window are returned.
  // Requires n_committed + n <= n_written.
  void commit(KvLease& lease, int32_t n);
  // Forgets the last n written tokens and returns blocks left without any. Requires n <= n_written - n_committed.
  void rollback(KvLease& lease, int32_t n);
  // Returns every block. The lease may be used again, from position 0.
  void release(KvLease& lease);

  // `leases`: all that hold blocks of this cache. Checks them against each other and against the pool.
  Status check_integrity(std::span<const KvLease* const> leases) const;

 private:
  struct Group {
    GroupSpec spec;
    ClassId size_class;
  };

  size_t peak_blocks(const GroupSpec& spec, int32_t n_tokens, int32_t max_chunk) const;
  bool fits_alone(int32_t n_tokens) const;
  int32_t find_capacity() const;
  void drop_outside_window(const Group& group, BlockTable& table, int32_t n_committed);
  Status check_lease(const KvLease& lease) const;

  BlockPool& pool_;
  ModelId model_;
  std::vector<Group> groups_;  // by GroupId
  int32_t capacity_tokens_ = 0;
  mutable std::vector<BlockNeed> needs_;  // scratch, by GroupId
};

}  // namespace pagoda::kv
