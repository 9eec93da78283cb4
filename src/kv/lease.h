// KvLease: a sequence's hold on cached memory, so that sched needs no block and kv no sequence. Filled and emptied by Cache only.
//
//   positions  [0 ........ n_committed ........ n_written)
//               K and V final, sealed     granted to the step that runs, or drafts not yet accepted
//               where a block is full
//   path       root -> node -> node       of the prefix index, one node per sealed block; the lease is a holder of the last one
//
// Move-only. Destroying or overwriting one that still holds blocks is a bug -> CHECK: Cache::release it first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "base/token_id.h"
#include "kv/block_table.h"
#include "kv/ids.h"
#include "kv/session_name.h"
#include "kv/tier.h"
#include "kv/tiering_stats.h"

namespace pagoda::kv {

// Whether admit may answer WaitOn. Set to kNever by the scheduler once a ticket's deadline has passed: the tokens are recomputed.
enum class Patience : uint8_t { kMayWait, kNever };

// Whether an admission may take over tokens that the cache already holds.
enum class PrefixReuse : uint8_t {
  kMatch,
  kNone,  // computes all of them: the logits of every prompt position are wanted. Its blocks serve others all the same
  kNoRoom,  // the same, because hits lie scattered and leave it no room
};

// Why a lease gives its blocks back, as its session sees it: a request's end is a turn; what goes on later is held meanwhile; what an
// admission took back itself never was.
enum class LeaseEnd : uint8_t { kTurn, kPause, kUndo };

// Whether the tiers have, or are on their way to have, all that a lease held.
enum class TierCopies : uint8_t { kAll, kSome };

// What a lease knows of the tiers. Empty where there are none.
struct LeaseTiers {
  std::vector<TierKey> keys;  // of the namespace's root, then of the path's blocks; made when first wanted
  std::optional<size_t>
      load_from;  // the blocks it held when it last waited for a load: if they are still all, it brought nothing
  TierCopies copies = TierCopies::kAll;  // when it was released last
  bool was_stuck = false;                // that was so: tiers without an index are not asked again
  std::array<int32_t, kMaxTiers>
      restored_tokens{};  // taken over from blocks that were loaded and not used since, by tier
};

class KvLease {
 public:
  KvLease() = default;
  KvLease(ModelId model, CacheNamespace cache_namespace) : model_(model), namespace_(cache_namespace) {}
  KvLease(KvLease&& other) noexcept { *this = std::move(other); }
  KvLease& operator=(KvLease&& other) noexcept {
    CHECK(!holds_blocks());
    model_ = other.model_;
    namespace_ = other.namespace_;
    patience = other.patience;
    reuse = other.reuse;
    open_namespace = other.open_namespace;
    session = other.session;
    is_counted_ = other.is_counted_;
    tables_ = std::exchange(other.tables_, {});
    token_ids_ = std::exchange(other.token_ids_, {});
    n_committed_ = std::exchange(other.n_committed_, 0);
    path_ = std::exchange(other.path_, {});
    root_ = std::exchange(other.root_, kNoNode);
    n_prompt_ = std::exchange(other.n_prompt_, 0);
    flight_ = std::exchange(other.flight_, std::nullopt);
    tiers_ = std::exchange(other.tiers_, {});
    return *this;
  }
  KvLease(const KvLease&) = delete;
  KvLease& operator=(const KvLease&) = delete;
  ~KvLease() { CHECK(!holds_blocks()); }

  ModelId model() const { return model_; }
  const CacheNamespace& cache_namespace() const { return namespace_; }
  int32_t n_committed() const { return n_committed_; }
  int32_t n_written() const { return static_cast<int32_t>(token_ids_.size()); }
  // The tokens that the blocks hold, by position: [n_written].
  std::span<const TokenId> token_ids() const { return token_ids_; }
  // [blocks_for(n_written)]; kNoBlock where a window group dropped it. Empty before the first admit. Valid until the next call to Cache.
  std::span<const BlockId> blocks(GroupId group) const {
    return group.value < tables_.size() ? std::span<const BlockId>(tables_[group.value].blocks)
                                        : std::span<const BlockId>();
  }
  // Tokens that came from a tier, since it was last empty.
  const std::array<int32_t, kMaxTiers>& restored_tokens() const { return tiers_.restored_tokens; }
  // Of the positions [0, n_written), those whose blocks a window group dropped.
  int32_t n_dropped(GroupId group) const {
    return group.value < tables_.size() ? static_cast<int32_t>(tables_[group.value].n_dropped) * kBlockTokens : 0;
  }
  // Whether it holds memory, or a place in the prefix index.
  bool holds_blocks() const {
    if (root_ != kNoNode) return true;
    for (const BlockTable& table : tables_) {
      if (table.n_held() > 0) return true;
    }
    return false;
  }

  Patience patience = Patience::kMayWait;
  PrefixReuse reuse = PrefixReuse::kMatch;
  // Whoever may use the lease's namespace may use this one as well, and so may know what it holds (MissReason::kNamespace).
  CacheNamespace open_namespace;
  // What it has computed when it is released, its session holds from then on (sessions.h).
  SessionId session;

 private:
  friend class Cache;

  ModelId model_;
  CacheNamespace namespace_;
  std::vector<BlockTable> tables_;  // by GroupId
  std::vector<TokenId> token_ids_;
  int32_t n_committed_ = 0;
  // Empty where the cache has no prefix index.
  std::vector<NodeId> path_;  // [n_committed / 32]
  NodeId root_ = kNoNode;
  int32_t n_prompt_ = 0;           // tokens known at the first admit: their end is a replay point
  bool is_counted_ = false;        // its lookup, among the reuse distances
  std::optional<Hash128> flight_;  // the block it computes for others too (in_flight.h)
  LeaseTiers tiers_;
};

}  // namespace pagoda::kv
