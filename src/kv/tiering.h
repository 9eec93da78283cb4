// Tiering: what goes to the tiers and what comes back, so that a block which RAM gave up, or never had, is a hit all the same.
//
//   store()            a sealed block is copied aside (staging.h) and put into every tier that lacks it. Best effort: what finds no room,
//                      or no tier, is not stored; nobody waits, and the pool may give the block away at once
//   load()             the blocks behind the last hit in RAM:  [ask] -> allocate -> get ... get -> nodes of the prefix index
//                      Who wants them waits on one ticket, and then finds them in RAM like any hit. Others that want them wait on it too.
//   take_completed()   between two steps: what the stores have finished
//
// A load takes as many blocks as all tiers have in a row, RAM has room for, and are estimated to be read sooner than computed; of window
// groups only those that the token behind them would see, so it ends where such windows are. A block that fails ends it: what came before
// is kept. A load goes on when nobody waits any more; it holds its blocks until they have come, and no path.
//
// Units: as named.   Owns: the stores, the staged copies, and the blocks being loaded (open, one reference each).
// Threads: engine thread only; stats() from any.   Errors: none: a tier that fails is a tier that has nothing. Never blocks.
// Cost: store O(1) and a copy; load O(path + blocks of the run) look-ups.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/token_id.h"
#include "kv/block_pool.h"
#include "kv/lease.h"
#include "kv/prefix_index.h"
#include "kv/staging.h"
#include "kv/tier.h"
#include "kv/tiering_stats.h"

namespace pagoda::kv {

struct TieringConfig {
  size_t staging_bytes = size_t{32} << 20;  // blocks copied aside and not yet stored
  int64_t load_wait_us = 2'000'000;         // the longest that anybody waits for a load
};

// One cached model, as its cache registers it.
struct TierModel {
  ModelId model;
  uint16_t owner = 0;  // of the prefix index, as `fingerprint`: together with a namespace they find a root
  Hash128 fingerprint{};
  std::vector<PrefixOwner::Group> groups;  // by GroupId
};

// Whether a tier that keeps no index may be asked: a round trip.
enum class TierAsking : uint8_t { kMay, kNever };

// Whether a load must be estimated to be faster than computing.
enum class TierWorth : uint8_t { kIfFaster, kAlways };

// What a load is asked for.
struct TierLookup {
  ModelId model;
  CacheNamespace cache_namespace;
  std::span<const TokenId> token_ids;  // all that are known; the last one is never loaded
  std::span<const TierKey> keys;       // of the namespace's root, and of the blocks that the caller holds already
  NodeId at;                           // the last of those, or the root
  TierAsking asking = TierAsking::kMay;
  TierWorth worth = TierWorth::kIfFaster;
};

// Why there is nothing to wait for.
enum class TierMiss : uint8_t {
  kAbsent,   // no tier has more, or none could be asked
  kSlow,     // computing is estimated to be faster
  kNoRoom,   // in RAM
  kCorrupt,  // there, but not the bytes that were put
};

struct LoadAnswer {
  std::optional<TicketId> ticket;  // none: `miss` says why
  int64_t deadline_us = 0;         // not worth waiting for any longer
  TierMiss miss = TierMiss::kAbsent;
};

class Tiering {
 public:
  // All must outlive it. The arena's blocks are read and written by the stores.
  Tiering(BlockPool& pool, PrefixIndex& index, BlockIo& arena, const Clock& clock, const TieringConfig& config = {});
  ~Tiering();
  Tiering(const Tiering&) = delete;
  Tiering& operator=(const Tiering&) = delete;

  // What stores are opened with.
  BlockIo& io() { return staging_; }
  // The fastest first; at most kMaxTiers. Before the first load.
  void add_store(std::unique_ptr<TierStore> store);
  size_t n_stores() const { return stores_.size(); }
  TierStats store_stats(size_t tier) const { return stores_[tier].store->stats(); }

  // Before the model's other calls.
  void add_model(TierModel model);
  // `identity`: digest of all that decides a block's bytes besides its tokens and namespace, over whole files. Without it nothing of the
  // model is stored or loaded.
  void set_identity(ModelId model, const Sha256& identity);
  bool is_ready(ModelId model) const { return models_.at(model).identity.has_value(); }
  // What computing a token takes. 0: not known, loading is always worth a try.
  void set_compute_cost(ModelId model, double us_per_token) { models_.at(model).us_per_token = us_per_token; }

  // Requires is_ready().
  TierKey root_key(ModelId model, const CacheNamespace& cache_namespace) const;
  // Whether a tier is known to have the object.
  std::optional<size_t> find(const TierObject& object) const;

  // `block` is sealed. Its bytes are copied before the call returns.
  void store(ModelId model, const TierObject& object, BlockId block);
  // The same for a block that was stored before: where a tier is known to have dropped it since. Of a tier that keeps no index this is
  // known after ask_again(), and asked about so often only (kAskAgainUs).   False: it found no room on its way, and may be tried again.
  bool store_again(ModelId model, const TierObject& object, BlockId block);
  // Asks about what the calls of store_again() since the last one did not know.
  void ask_again();
  // Requires is_ready(). RAM has none of what stands behind `keys`, or not the windows for it.
  LoadAnswer load(const TierLookup& wanted);
  // Why load() would find nothing, if it failed lately.
  LoadAnswer explain(const TierLookup& wanted) const;

  // Appends the tickets of loads that ended since the last call; their blocks are in the index.
  void take_completed(std::vector<TicketId>& tickets);
  // Blocks are being loaded: they are in nobody's table, and come free or cached by themselves.
  bool is_loading() const { return !loads_.empty(); }
  bool is_storing() const { return !puts_.empty(); }

  // A sequence took over a node's blocks: counted if they came from a tier and nobody used them since. Returns the tier.
  std::optional<size_t> take_restored(NodeId id);

  TieringStats stats() const { return snapshot_.load(); }
  // Blocks of the model that are being loaded.
  void for_each_block(ModelId model, const std::function<void(GroupId, BlockId)>& visit) const;
  Status check_integrity() const;

  const std::optional<Sha256>& identity(ModelId model) const { return models_.at(model).identity; }

 private:
  struct Model {
    TierModel spec;
    std::optional<Sha256> identity;
    double us_per_token = 0;
    size_t block_bytes(const BlockPool& pool, GroupId group) const {
      return pool.block_bytes(spec.groups[group.value].size_class);
    }
  };
  struct Store {
    std::unique_ptr<TierStore> store;
    size_t n_gets = 0;             // outstanding
    size_t get_bytes = 0;          // outstanding
    int64_t read_us = 0;           // when the last get was answered
    std::list<int64_t> asks_us{};  // outstanding, oldest first: when they were asked
    double ask_us = 0;             // from asking to the answer, moving average
    int64_t asked_us = 0;          // when the last ask was answered
  };
  struct Put {
    TierObject object;
    BlockId staged;
    size_t bytes = 0;
    int n_open = 0;  // tiers that have not answered
    bool is_stored = false;
  };
  struct Piece {       // one block of one group
    size_t block = 0;  // by position
    GroupId group;
    size_t tier = 0;
    BlockId dest;
    enum class State : uint8_t { kQueued, kReading, kThere, kGone } state = State::kQueued;
  };
  struct Load {
    TicketId ticket;
    Model* model = nullptr;
    CacheNamespace cache_namespace;
    std::vector<TokenId> token_ids;  // of whole blocks from position 0
    std::vector<TierKey> keys;       // keys[b + 1] is block b's
    size_t first = 0;                // blocks [first, end) are wanted; before `first` windows only
    size_t end = 0;
    std::vector<Piece> pieces;  // by block
    size_t next_piece = 0;      // pieces before it are in the index, or gone
    size_t next_queued = 0;     // pieces before it are with the stores
    size_t n_reading = 0;
    int n_asks = 0;                                                // outstanding
    bool was_not_asked = false;                                    // a tier that answers too slowly
    std::unordered_map<TierObject, size_t, TierObjectHash> asked;  // present, by tier
    enum class Phase : uint8_t { kNew, kAsking, kReading, kDone } phase = Phase::kNew;
    TierWorth worth = TierWorth::kIfFaster;
    int64_t begin_us = 0;
  };
  struct Reading {
    Load* load = nullptr;
    size_t piece = 0;
  };
  struct Asking {
    Load* load = nullptr;  // null: of ask_again()
    std::vector<TierObject> objects;
    std::list<int64_t>::iterator since;  // in its store's asks_us
  };
  // What a tier without an index said about an object lately. Forgets.
  struct Said {
    TierObject object;
    Presence presence = Presence::kUnknown;  // kUnknown: it is being asked
    int64_t until_us = 0;
  };
  struct Failure {
    TierKey key;
    TierMiss miss = TierMiss::kAbsent;
    int64_t until_us = 0;  // not tried again before
  };
  static constexpr size_t kNowhere = ~size_t{0}, kUnknown = kNowhere - 1, kInRam = kNowhere - 2;  // beside tiers

  enum class Outcome : uint8_t { kBegun, kNotWanted, kRefused };
  Outcome put_where(ModelId model, const TierObject& object, BlockId block, const std::function<bool(Presence)>& lacks);
  TicketId new_ticket() { return TicketId(next_ticket_++); }
  void publish() { snapshot_.store(stats_); }
  void note_there(const Store& store, const TierObject& object);
  void settle_put(TicketId ticket, TierOutcome outcome);

  // tiering_load.cc
  BlockTokens tokens_of(const Load& load, size_t block) const;
  NodeId find_root(const Load& load) const;
  TierKey next_key(const TierLookup& wanted) const;
  bool may_have(const TierLookup& wanted, const TierKey& next) const;
  Load& add_load(const TierLookup& wanted, const TierKey& next, size_t end);
  void walk(const Load& load);
  size_t where(const Load& load, size_t block, GroupId group) const;
  size_t first_window_block(const Load& load) const;
  size_t reach(const Load& load, size_t limit) const;
  size_t longest_run(const Load& load, size_t limit) const;
  bool ask(Load& load);
  void settle_ask(size_t tier, const TierDone& done);
  bool is_worth_asking(const Store& store, const Load& load) const;
  double compute_us(const Load& load, size_t first) const;
  void add_asking(Store& store, TicketId ticket, Load* load, std::vector<TierObject> objects);
  std::optional<TierMiss> begin(Load& load);
  void list_pieces(Load& load) const;
  bool allocate(Load& load);
  bool is_slower(const Load& load) const;
  int64_t deadline_us(const Load& load, size_t first) const;

  // tiering_read.cc
  void read_more(Load& load);
  void settle_get(TicketId ticket, TierOutcome outcome);
  void fail_piece(Load& load, Piece& piece, TierOutcome outcome);
  void add_nodes(Load& load);
  NodeId add_node(Load& load, NodeId parent, NodeId known, size_t block);
  void free_piece(Piece& piece);
  void cut(Load& load, size_t end);
  void finish(Load& load);
  bool advance(Load& load);
  void remember(const TierKey& key, TierMiss miss);
  const Failure* find_failure(const TierKey& key) const;
  Said& said_of(const TierObject& object) { return said_[TierObjectHash{}(object) % said_.size()]; }
  size_t failure_at(const TierKey& key) const { return TierObjectHash{}({key, GroupId(0)}) % failures_.size(); }

  BlockPool& pool_;
  PrefixIndex& index_;
  const Clock& clock_;
  TieringConfig config_;
  Staging staging_;
  std::unordered_map<ModelId, Model> models_;
  uint64_t next_ticket_ = uint64_t{1} << 63;  // in_flight.h counts from 1
  std::unordered_map<TicketId, std::shared_ptr<Put>> puts_;
  std::unordered_set<TierObject, TierObjectHash> storing_;         // objects of puts_
  std::list<Load> loads_;                                          // oldest first
  std::unordered_map<TierObject, Load*, TierObjectHash> loading_;  // by the keys of blocks [first, end), in group 0
  std::unordered_map<TicketId, Reading> readings_;
  std::unordered_map<TicketId, Asking> askings_;
  std::vector<TicketId> completed_;
  std::array<Failure, 256> failures_{};  // lately, by key; forgets
  std::vector<Said> said_;               // by object; empty where every tier keeps an index
  std::vector<TierObject> unsure_;       // of store_again(), for ask_again()
  std::vector<NodeId> walked_;           // scratch: by block, kNoNode where RAM has none
  std::vector<TierDone> done_;           // scratch
  std::vector<BlockNeed> needs_;         // scratch
  TieringStats stats_;
  Snapshot<TieringStats> snapshot_;
  std::vector<Store> stores_;  // last: closed before what they read and write goes
};

}  // namespace pagoda::kv
