// Sessions, the rest: what sinks to the tiers, what is told, and whether the counts are right.
#include <algorithm>
#include <unordered_map>

#include "kv/block_table.h"
#include "kv/sessions.h"

namespace pagoda::kv {
namespace {

constexpr size_t kMostSunk = 32;           // blocks of one poll
constexpr int64_t kSinkRetryUs = 20'000;   // while what goes to the tiers has no room
constexpr size_t kMostSinking = 1024;      // sessions; beyond, the oldest are left as they are
constexpr int64_t kUnknownUs = 1'000'000;  // until the tiers know the model

}  // namespace

void Sessions::sink(const Session& session) {
  if (config_.tiering == nullptr || config_.tiering->n_stores() == 0 || session.token_ids->size() < kBlockTokens)
    return;
  // A later turn's list takes the place of the one it grew from.
  if (!sinking_.empty() && sinking_.back().token_ids == session.token_ids) return;
  const uint64_t bytes = session.token_ids->size() * sizeof(TokenId), most_bytes = config_.most_table_bytes / 4;
  if (bytes > most_bytes) return;
  while (sinking_.size() >= kMostSinking || sinking_bytes_ + bytes > most_bytes) pop_sinking();
  sinking_bytes_ += bytes;
  sinking_.push_back({.model = session.model,
                      .cache_namespace = session.key.cache_namespace,
                      .token_ids = session.token_ids,
                      .key = {}});
}

void Sessions::pop_sinking() {
  sinking_bytes_ -= sinking_.front().token_ids->size() * sizeof(TokenId);
  sinking_.pop_front();
}

// True: nothing is left to do.
bool Sessions::sink_some(Sinking& sinking) {
  Tiering& tiering = *config_.tiering;
  const int64_t now_us = config_.clock->now_us();
  if (!tiering.is_ready(sinking.model)) {
    sink_us_ = now_us + kUnknownUs;
    return false;
  }
  const PrefixIndex& index = *config_.index;
  const SessionModel& model = models_.at(sinking.model);
  path_.clear();
  index.find_path(index.find_root(model.owner, model.fingerprint, sinking.cache_namespace), *sinking.token_ids, path_);
  if (!sinking.key) sinking.key = tiering.root_key(sinking.model, sinking.cache_namespace);
  const size_t end = std::min(path_.size(), sinking.next + kMostSunk);
  for (; sinking.next < end; ++sinking.next) {
    const std::span<const TokenId> tokens(*sinking.token_ids);
    const TierKey key = tier_key(*sinking.key, tokens.subspan(sinking.next * kBlockTokens).first<kBlockTokens>());
    for (uint32_t g = 0; g < model.groups.size(); ++g) {
      const BlockId block = index.block(path_[sinking.next], GroupId(g));
      const bool is_wanted = model.groups[g].window_tokens == 0 || index.is_replay(path_[sinking.next], GroupId(g));
      if (block.is_none() || !is_wanted || tiering.store_again(sinking.model, {key, GroupId(g)}, block)) continue;
      sink_us_ = now_us + kSinkRetryUs;
      return false;
    }
    sinking.key = key;
  }
  return sinking.next >= path_.size();
}

SessionInfo Sessions::info_of(const Session& session) const {
  const int64_t now_us = config_.clock->now_us();
  SessionInfo info{.name = session.key.name,
                   .n_tokens = session.token_ids->size(),
                   .is_pinned = session.is_pinned,
                   .pinned_tokens = session.hold.n_pinned * kBlockTokens,
                   .n_running = session.n_running,
                   .n_turns = session.n_turns,
                   .ttl_us = session.ttl_us,
                   .idle_us = session.n_running > 0 ? 0 : now_us - session.used_us,
                   .left_us = {}};
  if (session.is_idle()) info.left_us = std::max<int64_t>(0, session.expires_us() - now_us);
  return info;
}

Result<SessionInfo> Sessions::info(const SessionKey& key) const {
  const Session* session = find(key);
  if (session != nullptr) return info_of(*session);
  return unknown(key);
}

std::vector<SessionInfo> Sessions::list(const CacheNamespace& cache_namespace, std::string_view after,
                                        size_t most) const {
  std::vector<SessionInfo> infos;
  for (auto at = table_.upper_bound({cache_namespace, std::string(after)});
       at != table_.end() && at->first.cache_namespace == cache_namespace && infos.size() < most; ++at) {
    infos.push_back(info_of(*at->second));
  }
  return infos;
}

Result<SessionPlaces> Sessions::places(const SessionKey& key) const {
  TRY_ASSIGN(const Path path, this->path(key));
  SessionPlaces places{.n_blocks = path.token_ids->size() / kBlockTokens};
  if (places.n_blocks == 0) return places;
  const SessionModel& model = models_.at(path.model);
  path_.clear();
  config_.index->find_path(config_.index->find_root(model.owner, model.fingerprint, key.cache_namespace),
                           *path.token_ids, path_);
  places.ram_blocks = path_.size();
  for (const NodeId id : path_) places.ram_bytes += config_.index->node_bytes(id);
  places.absent_blocks = places.n_blocks - path_.size();
  const bool has_full = std::ranges::any_of(model.groups, [](const auto& group) { return group.window_tokens == 0; });
  if (places.absent_blocks == 0 || !has_full || config_.tiering == nullptr || !config_.tiering->is_ready(path.model)) {
    return places;
  }
  TierKey at = config_.tiering->root_key(path.model, key.cache_namespace);
  for (size_t b = 0; b < places.n_blocks; ++b) {
    at = tier_key(at, std::span(*path.token_ids).subspan(b * kBlockTokens).first<kBlockTokens>());
    if (b < path_.size()) continue;
    for (uint32_t g = 0; g < model.groups.size(); ++g) {
      if (model.groups[g].window_tokens > 0) continue;
      if (const auto tier = config_.tiering->find({at, GroupId(g)})) {
        ++places.tier_blocks[*tier];
        --places.absent_blocks;
      }
      break;
    }
  }
  return places;
}

Status Sessions::check_integrity() const {
  struct Counts {
    uint32_t sessions = 0, pins = 0, windows = 0;
  };
  std::unordered_map<uint32_t, Counts> counts;
  size_t n_idle = 0, n_pinned = 0;
  uint64_t token_bytes = 0;
  for (const auto& [key, session] : table_) {
    n_idle += session->is_idle() ? 1 : 0;
    n_pinned += session->is_pinned ? 1 : 0;
    token_bytes += session->token_ids->size() * sizeof(TokenId);
    if (!(session->key == key) || by_id_.at(session->id) != session.get()) {
      return fail(ErrorCode::kInternal, "session {} is another", key.name);
    }
    const PathHold& hold = session->hold;
    path_.clear();
    config_.index->find_path(root_of(*session), *session->token_ids, path_);
    for (size_t b = 0; b < std::min(hold.n_blocks, path_.size()); ++b) {
      if (config_.index->trie().node(path_[b]).birth > hold.stamp) break;
      Counts& node = counts[path_[b].value];
      ++node.sessions;
      node.pins += b < hold.n_pinned ? 1 : 0;
      node.windows += b >= hold.first_window ? 1 : 0;
    }
  }
  if (by_id_.size() != table_.size() || by_expiry_.size() != n_idle || by_use_.size() != n_idle ||
      stats_.pinned != n_pinned || table_.size() > config_.most_sessions) {
    return fail(ErrorCode::kInternal, "{} sessions, {} idle, {} listed, {} pinned, {} counted", table_.size(), n_idle,
                by_expiry_.size(), n_pinned, stats_.pinned);
  }
  if (token_bytes != stats_.table_bytes || (sinking_.empty() && sinking_bytes_ != 0)) {
    return fail(ErrorCode::kInternal, "{} bytes of tokens, {} counted, {} sinking", token_bytes, stats_.table_bytes,
                sinking_bytes_);
  }
  Status status;
  config_.index->trie().for_each([&](NodeId id) {
    const PrefixNode& node = config_.index->trie().node(id);
    const auto at = counts.find(id.value);
    const Counts wanted = at == counts.end() ? Counts{} : at->second;
    if (!status ||
        (node.n_sessions == wanted.sessions && node.n_pins == wanted.pins && node.n_windows == wanted.windows))
      return;
    status = fail(ErrorCode::kInternal, "node {}: held by {} sessions, counted {}", id.value, wanted.sessions,
                  node.n_sessions);
  });
  return status;
}

}  // namespace pagoda::kv
