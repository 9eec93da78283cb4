// Sessions, their holds: which nodes of the prefix index a session counts on, and how many of them it may pin.
#include <algorithm>

#include "base/check.h"
#include "kv/block_table.h"
#include "kv/sessions.h"

namespace pagoda::kv {

NodeId Sessions::root_of(const Session& session) const {
  const auto model = models_.find(session.model);
  if (model == models_.end()) return kNoNode;
  return config_.index->find_root(model->second.owner, model->second.fingerprint, session.key.cache_namespace);
}

// Of the blocks, the first that the token behind them all would see in a window group.
size_t Sessions::first_window(const Session& session) const {
  const size_t n_blocks = session.token_ids->size() / kBlockTokens;
  size_t first = n_blocks;
  for (const PrefixOwner::Group& group : models_.at(session.model).groups) {
    if (group.window_tokens == 0) continue;
    const auto n_tokens = static_cast<int32_t>(n_blocks) * kBlockTokens;
    first = std::min(first, blocks_out_of_window(group.window_tokens, n_tokens));
  }
  return first;
}

// `path`: of its tokens' whole blocks, as far as they are there.
void Sessions::hold(Session& session, std::span<const NodeId> path) {
  CHECK(session.hold.n_blocks == 0);
  if (path.empty()) return;
  session.hold = {.n_blocks = path.size(), .first_window = first_window(session)};
  limit_pins(path, session.is_pinned ? path.size() : 0, session.hold);
  config_.index->hold_path(path, session.hold);
}

// Pins as many of `n_wanted` as the limit lets it. Nor may a window that others' pins would cover pass it: such windows are not held.
void Sessions::limit_pins(std::span<const NodeId> path, size_t n_wanted, PathHold& hold) const {
  const uint64_t limit_bytes = pin_limit_bytes();
  uint64_t bytes = config_.index->stats().pin_bytes;
  for (size_t b = n_wanted > 0 ? 0 : hold.first_window; b < path.size(); ++b) {
    hold.n_pinned = std::min(n_wanted, b + 1);
    uint64_t growth = config_.index->pin_growth(path[b], hold, b);
    if (bytes + growth > limit_bytes && hold.n_pinned > b) {
      n_wanted = hold.n_pinned = b;
      growth = config_.index->pin_growth(path[b], hold, b);
    }
    if (bytes + growth > limit_bytes) {
      hold.first_window = b + 1;
      growth = 0;
    }
    bytes += growth;
  }
}

void Sessions::drop(Session& session) {
  config_.index->drop_path(root_of(session), *session.token_ids, session.hold);
  session.hold = {};
}

// All of it that is there now.
void Sessions::hold_again(Session& session) {
  drop(session);
  path_.clear();
  config_.index->find_path(root_of(session), *session.token_ids, path_);
  hold(session, path_);
}

uint64_t Sessions::bytes_to_pin(const Session& session) const {
  path_.clear();
  config_.index->find_path(root_of(session), *session.token_ids, path_);
  if (path_.empty()) return 0;
  const PathHold hold{.n_blocks = path_.size(), .n_pinned = path_.size(), .first_window = first_window(session)};
  uint64_t bytes = 0;
  for (size_t b = 0; b < path_.size(); ++b) bytes += config_.index->pin_growth(path_[b], hold, b);
  return bytes;
}

}  // namespace pagoda::kv
