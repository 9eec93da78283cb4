// InFlight: which blocks somebody computes right now, so that others with the same tokens wait for them instead of computing them too.
// One entry per lease at most: the next block that its known tokens will fill. Whoever waits holds no entry, so nobody waits in a ring.
// Threads: engine thread only.     Cost: O(1).
#pragma once

#include <array>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/token_id.h"
#include "kv/prefix_trie.h"

namespace pagoda::kv {

class InFlight {
 public:
  // The ticket to wait for, if someone computes this child of `parent`. `key` is PrefixTrie::key_of.
  std::optional<TicketId> find(const Hash128& key, NodeId parent, BlockTokens tokens) const;
  // From now on the caller computes it. TicketId() if somebody already does, or if another block has the same key.
  // Requires that `parent` stays pinned until close().
  TicketId open(const Hash128& key, NodeId parent, BlockTokens tokens);
  // The block is registered, or will not come: the ticket is complete.
  void close(const Hash128& key);

  // Moves the tickets completed since the last call to the end of `tickets`.
  void take_completed(std::vector<TicketId>& tickets);

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    NodeId parent;
    std::array<TokenId, kBlockTokens> tokens;
    TicketId ticket;
  };
  struct KeyHash {
    size_t operator()(const Hash128& key) const { return static_cast<size_t>(key.low); }
  };
  std::unordered_map<Hash128, Entry, KeyHash> entries_;
  std::vector<TicketId> completed_;
  uint64_t next_ticket_ = 1;
};

}  // namespace pagoda::kv
