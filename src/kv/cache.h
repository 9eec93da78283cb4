// Cache: decides which blocks hold one model instance's tokens. It sees leases and token ids, never sequences or bytes.
//
//   admit -> (the step writes K and V) -> commit       before every chunk, decode and draft row alike
//                                      -> rollback     drafts that were not accepted, a step that failed
//   release                                            at the end, or when preempted
//
// With a prefix index, admit takes over what is cached already: whole blocks by reference, the tokens of one more by copy-on-write; commit
// registers blocks as they fill, so requests in flight share; and who asks for tokens that another lease computes right now waits for
// it. At least one token is always left to compute.
//
// Units: tokens and positions (int32), blocks of 32 tokens.   Owns: the references in every lease's tables; the pool owns the blocks.
// Invariants: (1) each group's table covers [0, n_written).  (2) a block is sealed <=> its last token is committed.
//             (3) a window group drops a block once no later query can see it.  (4) a sealed block of a lease is its node's.
//             check_integrity(leases): tests and idle.
// Threads: engine thread only.   Errors: no room and waiting are in the return type; a lease of another model is a bug -> CHECK.
// Cost: O(new blocks); no allocation but the growth of a lease's tables and of the index.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/token_id.h"
#include "kv/block_op.h"
#include "kv/block_pool.h"
#include "kv/ids.h"
#include "kv/lease.h"
#include "kv/miss.h"
#include "kv/prefix_index.h"
#include "kv/reuse_distance.h"

namespace pagoda::kv {

// One attention group of the model: its blocks' size, and how far back its layers look.
struct GroupSpec {
  size_t block_bytes = 0;
  int32_t window_tokens = 0;  // a query at position p sees t > p - window_tokens; 0: all of them
};

// The blocks are there; ops were appended to the caller's list.
struct Granted {
  int32_t reused_tokens = 0;  // tokens found in the cache and taken over: the step starts behind them
  int32_t copied_tokens = 0;  // of those, by copy-on-write
  MissReason miss = MissReason::kNone;
  Divergence divergence;  // where the miss is due to one
};
// Ask again when the ticket completes or its deadline passes, whichever is first. What the lease holds by now it keeps.
struct WaitOn {
  // A load goes on by itself; another lease's rows only while steps run.
  enum class For : uint8_t { kLoad, kRows };
  TicketId ticket;
  int64_t deadline_us = 0;
  For waits_for = For::kLoad;
};
// Nothing changed, except that a lease which holds tokens keeps those found for it.
struct NoSpace {
  size_t bytes = 0;  // that must become free first
};
using Admission = std::variant<Granted, WaitOn, NoSpace>;

class Tiering;   // tiering.h
class Sessions;  // sessions.h

// Lets a cache find and keep prefixes.
struct PrefixConfig {
  PrefixIndex* index = nullptr;  // of the same pool
  const Clock* clock = nullptr;  // the one that WaitOn's deadlines are read by
  Hash128 fingerprint{};  // of all that decides a block's bytes besides its tokens: file, arithmetic, layout, formats
  double cost_per_byte = 1;            // PrefixOwner
  ReuseDistance* reuse = nullptr;      // null: nobody asks
  int64_t flight_wait_us = 2'000'000;  // the longest wait for another lease's next block
  Tiering* tiering = nullptr;          // of the same pool and index; null: RAM is all there is
  Sessions* sessions = nullptr;        // of the same index; null: none
};

class Cache {
 public:
  // Registers a size class per group. GroupId is the index in `groups`; at least one. The pool must outlive the cache, and so must what
  // `prefix` names. None: every lease computes everything. All caches of a pool have the same index, or none has one.
  Cache(BlockPool& pool, ModelId model, std::span<const GroupSpec> groups,
        const std::optional<PrefixConfig>& prefix = std::nullopt);
  virtual ~Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  ModelId model() const { return model_; }
  size_t n_groups() const { return groups_.size(); }
  const GroupSpec& group(GroupId id) const { return groups_[id.value].spec; }
  ClassId size_class(GroupId id) const { return groups_[id.value].size_class; }
  BlockPool& pool() const { return pool_; }
  const PrefixIndex* index() const { return prefix_.index; }    // null: none
  const ReuseDistance* reuse() const { return prefix_.reuse; }  // null: nobody asked

  // The longest context that the whole budget can hold for one sequence alone, in chunks of one token if need be. Constant.
  int32_t capacity_tokens() const { return capacity_tokens_; }

  // Room for token_ids[n_written, n_written + n_new), in all groups or in none; n_written advances by n_new when granted. `token_ids` are
  // all tokens of the sequence that are known, and begin with those the lease already holds. Every newly opened block gets a kZero or
  // kCopy op. Where tokens are reused, n_committed and n_written move behind them first; n_new is cut to what is left.
  // Virtual, so that schedulers can be tested against a cache that makes them wait.
  virtual Admission admit(KvLease& lease, std::span<const TokenId> token_ids, int32_t n_new, std::vector<BlockOp>& ops);

  // Tokens that admit would reuse for an empty lease now. An estimate for the order of admission: windows are not looked at.
  int32_t match_tokens(const CacheNamespace& cache_namespace, std::span<const TokenId> token_ids) const;

  // Whether a sequence of these tokens could be brought to their end in chunks of at most max_chunk, with `spare` more blocks left in
  // every group, without anyone else giving up a block. An estimate for admission: it reserves nothing.
  bool has_room(const KvLease& lease, std::span<const TokenId> token_ids, int32_t max_chunk, uint32_t spare) const;

  // The next n written tokens are final: full blocks are sealed, and blocks that left a group's window are returned.
  // Requires n_committed + n <= n_written.
  void commit(KvLease& lease, int32_t n);
  // Forgets the last n written tokens and returns blocks left without any. Requires n <= n_written - n_committed.
  void rollback(KvLease& lease, int32_t n);
  // Returns every block. The lease may be used again, from position 0.
  void release(KvLease& lease, LeaseEnd end = LeaseEnd::kTurn);

  // Memory that nobody holds is being filled, and will be cached or free by itself: a ticket completes then.
  bool is_loading() const;

  // Appends the tickets that completed since the last call.
  void take_completed(std::vector<TicketId>& tickets);

  // `leases`: all that hold blocks of this cache. Checks them against each other and against the pool.
  Status check_integrity(std::span<const KvLease* const> leases) const;

 private:
  struct Group {
    GroupSpec spec;
    ClassId size_class;
  };
  // What the index has for a lease, behind what it holds.
  struct Match {
    size_t n_blocks = 0;     // of found_: whole blocks to take over
    NodeId donor = kNoNode;  // whose first n_copied tokens come next
    int32_t n_copied = 0;
    MissReason miss = MissReason::kNone;
    Divergence divergence;
    std::optional<TicketId> wait_for;
  };

  bool has_prefixes() const { return prefix_.index != nullptr; }
  size_t peak_blocks(const GroupSpec& spec, int32_t n_tokens, int32_t max_chunk) const;
  bool fits_alone(int32_t n_tokens) const;
  int32_t find_capacity() const;
  bool make_room(const KvLease& lease, int32_t n_tokens);
  void open_blocks(KvLease& lease, int32_t n_tokens, const Match& match, std::vector<BlockOp>& ops);
  void return_block(const KvLease& lease, uint32_t group, size_t block);
  void drop_outside_window(KvLease& lease);

  // cache_prefix.cc
  NodeId end_of(const KvLease& lease) const { return lease.path_.empty() ? lease.root_ : lease.path_.back(); }
  void open_root(KvLease& lease, size_t n_known);
  Match match(KvLease& lease, std::span<const TokenId> token_ids);
  NodeId walk(const KvLease& lease, std::span<const TokenId> rest, Match& match);
  void match_next_block(const KvLease& lease, NodeId at, std::span<const TokenId> rest, Match& match);
  std::optional<TokenId> token_below(NodeId parent, const PrefixTrie::PartialHit& hit) const;
  bool is_open(const KvLease& lease, BlockTokens tokens) const;
  void count_lookup(KvLease& lease, std::span<const TokenId> token_ids);
  void count_use(const KvLease& lease);
  uint32_t count_held_hits(const KvLease& lease, std::span<const TokenId> token_ids) const;
  size_t cached_run(const KvLease& lease, uint32_t group) const;
  bool window_is_cached(int32_t n_tokens) const;
  bool has_all_blocks(NodeId id) const;
  void take_hits(KvLease& lease, const Match& match, std::span<const TokenId> token_ids);
  void hold_donor(NodeId donor);
  void drop_donor(NodeId donor);
  void step_to(KvLease& lease, NodeId child);
  void register_block(KvLease& lease, size_t block);
  void open_flight(KvLease& lease, std::span<const TokenId> token_ids);
  void close_flight(KvLease& lease);
  void mark_replay(KvLease& lease, size_t n_blocks, size_t n_extra);
  void mark_prompt_replays(KvLease& lease, size_t n_before);
  void pass_dropped(KvLease& lease);
  void keep_session(KvLease& lease, LeaseEnd end);

  // cache_tiers.cc
  void register_tiers();
  std::span<const TierKey> tier_keys(KvLease& lease) const;
  void store_block(KvLease& lease, size_t block);
  void store_block(KvLease& lease, size_t block, GroupId group);
  void store_again(KvLease& lease);
  std::optional<WaitOn> load_more(KvLease& lease, std::span<const TokenId> token_ids, MissReason& miss);
  void count_restored(KvLease& lease) const;

  Status check_lease(const KvLease& lease) const;
  Status check_path(const KvLease& lease) const;
  Status check_holders(std::span<const KvLease* const> leases) const;

  BlockPool& pool_;
  ModelId model_;
  std::vector<Group> groups_;  // by GroupId
  int32_t capacity_tokens_ = 0;
  PrefixConfig prefix_;
  uint16_t prefix_owner_ = 0;
  size_t reuse_bytes_ =
      0;  // of a block in the groups that reuse distances count: those that keep all tokens, or all where none does
  mutable std::vector<BlockNeed> needs_;  // scratch, by GroupId
  std::vector<NodeId> found_;             // scratch: nodes behind a lease's path
  std::vector<Hash128> keys_;             // scratch: of an empty lease's blocks, where its look-up was counted
  std::vector<Hash128> sampled_;          // scratch: keys
  std::vector<size_t> runs_;              // scratch, by GroupId: blocks in a row that end where the walk is
};

}  // namespace pagoda::kv
