// Sessions: named holds on paths of the prefix index, so that a conversation's blocks outlive its requests. A session changes no prompt and
// keeps no sampler state: its next turn matches like any prompt, and finds more.
//
//   turn      a lease that names a session leaves it its committed tokens when it is released. What ended last is held, unless it is only
//             the beginning of what is held already, shorter than a block, or longer than the table has room for when all that are idle have ended
//   hold      the path's nodes, and the windows behind its last whole block, are evicted after all that no session holds; pinned ones
//             last, up to half of the budget. Everything can still be evicted: idle sessions never stand in anybody's way
//   sinking   blocks are in the tiers since they were sealed; those that found no room on their way then are stored by poll()
//   end       deleted, or not used for its TTL, or the oldest idle one of too many, or of too large a table: its blocks are ordinary
//             cached ones from then on
//   fork      another name for the same tokens and the same nodes: nothing is copied
//
// Owns: the table; nodes and blocks are the index's.   Units: as named; 4 bytes a token beside the index.
// Invariant: a node's counts are those of the sessions whose hold it is in (check_integrity).
// Threads: engine thread only.   Errors: unknown names and limits, as Results; of another namespace a session is unknown.
// Cost: enter, leave O(log sessions); take, fork, remove O(path); poll O(1) while nothing expires or sinks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "kv/lease.h"
#include "kv/prefix_index.h"
#include "kv/session_record.h"
#include "kv/tiering.h"

namespace pagoda::kv {

// Who keeps records of sessions, so that they come back after a restart. Neither call waits.
class SessionKeeper {
 public:
  virtual ~SessionKeeper() = default;
  virtual void save(SessionRecord record) = 0;
  virtual void forget(const SessionKey& key, const Hash128& fingerprint) = 0;
};

struct SessionConfig {
  PrefixIndex* index = nullptr;
  const BlockPool* pool = nullptr;
  const Clock* clock = nullptr;
  Tiering* tiering = nullptr;       // null: RAM is all there is
  SessionKeeper* keeper = nullptr;  // null: sessions end with the process
  int64_t ttl_us = int64_t{1800} * 1'000'000;
  size_t most_sessions = 4096;
  uint64_t most_table_bytes = uint64_t{64} << 20;  // of the table: SessionStats::table_bytes
};

// One cached model, as its cache registers it.
struct SessionModel {
  ModelId model;
  uint16_t owner = 0;  // of the prefix index, as `fingerprint`
  Hash128 fingerprint{};
  std::vector<PrefixOwner::Group> groups;
};

// What a lease leaves.
struct SessionTurn {
  SessionId session;
  ModelId model;
  std::vector<TokenId> token_ids;  // committed
  std::span<const NodeId> path;    // of their whole blocks
  TierCopies copies = TierCopies::kAll;
  LeaseEnd end = LeaseEnd::kTurn;  // kPause: held, but no turn, and not saved
};

// What may be told of one.
struct SessionInfo {
  std::string name;
  size_t n_tokens = 0;
  bool is_pinned = false;
  size_t pinned_tokens = 0;  // as many as the limit lets be
  int n_running = 0;         // requests
  uint64_t n_turns = 0;
  int64_t ttl_us = 0;
  int64_t idle_us = 0;
  std::optional<int64_t> left_us;  // none: pinned, or a request runs
};
// And where its whole blocks are. Each is counted where it is found first.
struct SessionPlaces {
  size_t n_blocks = 0;
  size_t ram_blocks = 0, ram_bytes = 0;
  std::array<size_t, kMaxTiers> tier_blocks{};
  size_t absent_blocks = 0;  // or in a tier that must be asked
};

struct SessionStats {
  uint64_t sessions = 0;
  uint64_t pinned = 0;
  uint64_t table_bytes = 0;      // about, outside the budget: rows, and lists of tokens, also those that are sinking
  uint64_t pin_limit_bytes = 0;  // of pinned blocks
  uint64_t created = 0, restored = 0, expired = 0, displaced = 0, deleted = 0, turns = 0;
  uint64_t sinking = 0;  // whose blocks are still to be stored
};

class Sessions {
 public:
  enum class Pin : uint8_t { kOn, kOff };

  // What the config names outlives it.
  explicit Sessions(const SessionConfig& config);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  void add_model(SessionModel model);
  const SessionModel& model(ModelId id) const { return models_.at(id); }

  // A request of the session begins; it is made if need be. None where there is no room for one more. leave() when it ends.
  SessionId enter(const SessionKey& key);
  void leave(SessionId id);
  // An ended session's turn is nobody's.
  void take(SessionTurn turn);
  // How many tokens the session has once a turn of these has been taken; of none: how many it has now.
  size_t tokens_after(SessionId id, ModelId model, std::span<const TokenId> token_ids) const;

  // kConflict: the name is taken, or there is no room: the message names the limit. kNotFound: no such session of that namespace.
  Status create(const SessionKey& key, std::optional<int64_t> ttl_us);
  Status remove(const SessionKey& key);
  Status fork(const SessionKey& from, std::string name, std::optional<int64_t> ttl_us = {});
  // kConflict: it would pin more than the limit.
  Status pin(const SessionKey& key, Pin pin);
  Result<SessionInfo> info(const SessionKey& key) const;
  Result<SessionPlaces> places(const SessionKey& key) const;
  // By name, those behind `after`.
  std::vector<SessionInfo> list(const CacheNamespace& cache_namespace, std::string_view after, size_t most) const;

  // The session's path, for who moves it elsewhere (session_transfer.h).
  struct Path {
    ModelId model;
    SharedTokens token_ids;
  };
  Result<Path> path(const SessionKey& key) const;
  // Makes the session, or gives it more tokens. kConflict: it holds others (so says can_put), or there is no room.
  Status can_put(const SessionKey& key, ModelId model, std::span<const TokenId> token_ids) const;
  Status put(const SessionKey& key, ModelId model, SharedTokens token_ids);

  // Of an earlier process. Those of other models are left out; those too many are forgotten, pinned ones last, then those used last.
  void restore(std::vector<SessionRecord> records);

  // Between steps: ends what has expired, stores what is sinking; a bounded part of each.
  void poll();
  // When poll() has something to do next.
  std::optional<int64_t> next_us() const;

  SessionStats stats() const;
  // Against the index, whose nodes it walks. O(sessions * path + nodes).
  Status check_integrity() const;

 private:
  struct Session {
    SessionId id;
    SessionKey key;
    ModelId model;
    SharedTokens token_ids;
    PathHold hold;
    int64_t ttl_us = 0;
    int64_t used_us = 0;
    bool is_pinned = false;
    int n_running = 0;
    uint64_t n_turns = 0;
    bool is_idle() const { return n_running == 0 && !is_pinned; }
    int64_t expires_us() const { return used_us + ttl_us; }
  };
  // Blocks that tiers are still to have.
  struct Sinking {
    ModelId model;
    CacheNamespace cache_namespace;
    SharedTokens token_ids;
    size_t next = 0;             // block
    std::optional<TierKey> key;  // of the block before it, or of the root
  };

  static tl::unexpected<Error> unknown(const SessionKey& key);
  Session* find(const SessionKey& key);
  const Session* find(const SessionKey& key) const;
  Session* find(SessionId id);
  Session& make(const SessionKey& key, int64_t ttl_us);
  Session* open(const SessionKey& key, int64_t ttl_us, size_t n_tokens);
  bool make_table_room(const Session* grown, size_t n_tokens);
  bool find_table_room(const Session* grown, size_t n_tokens, std::vector<Session*>& going) const;
  bool is_news(const Session& session, ModelId model, std::span<const TokenId> token_ids) const;
  uint64_t table_bytes() const;
  void end(Session& session);
  void set_idle(Session& session);
  void set_busy(Session& session);
  void touch(Session& session);
  NodeId root_of(const Session& session) const;
  void hold(Session& session, std::span<const NodeId> path);
  void limit_pins(std::span<const NodeId> path, size_t n_wanted, PathHold& hold) const;
  void drop(Session& session);
  void hold_again(Session& session);
  size_t first_window(const Session& session) const;
  uint64_t bytes_to_pin(const Session& session) const;
  void set_tokens(Session& session, SharedTokens token_ids);
  void save(const Session& session) const;
  void forget(const Session& session) const;
  SessionInfo info_of(const Session& session) const;
  void sink(const Session& session);
  void pop_sinking();
  bool sink_some(Sinking& sinking);
  uint64_t pin_limit_bytes() const { return config_.pool->stats().budget_bytes / 2; }

  const SessionConfig config_;
  std::unordered_map<ModelId, SessionModel> models_;
  std::map<SessionKey, std::unique_ptr<Session>> table_;
  std::unordered_map<SessionId, Session*> by_id_;
  std::set<std::pair<int64_t, SessionId>> by_expiry_;  // idle ones
  std::set<std::pair<int64_t, SessionId>> by_use_;     // idle ones
  std::deque<Sinking> sinking_;
  uint64_t sinking_bytes_ = 0;  // of their lists
  int64_t sink_us_ = 0;         // not before
  uint64_t next_id_ = 1;
  SessionStats stats_;
  mutable std::vector<NodeId> path_;  // scratch
};

}  // namespace pagoda::kv
