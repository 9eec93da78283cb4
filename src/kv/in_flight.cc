#include "kv/in_flight.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::kv {

std::optional<TicketId> InFlight::find(const Hash128& key, NodeId parent, BlockTokens tokens) const {
  const auto at = entries_.find(key);
  if (at == entries_.end() || at->second.parent != parent || !std::ranges::equal(at->second.tokens, tokens)) {
    return std::nullopt;
  }
  return at->second.ticket;
}

TicketId InFlight::open(const Hash128& key, NodeId parent, BlockTokens tokens) {
  const auto [at, is_new] = entries_.try_emplace(key);
  if (!is_new) return {};
  at->second.parent = parent;
  std::ranges::copy(tokens, at->second.tokens.begin());
  at->second.ticket = TicketId(next_ticket_++);
  return at->second.ticket;
}

void InFlight::close(const Hash128& key) {
  const auto at = entries_.find(key);
  CHECK(at != entries_.end());
  completed_.push_back(at->second.ticket);
  entries_.erase(at);
}

void InFlight::take_completed(std::vector<TicketId>& tickets) {
  tickets.insert(tickets.end(), completed_.begin(), completed_.end());
  completed_.clear();
}

}  // namespace pagoda::kv
