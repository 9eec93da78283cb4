#include "kv/sessions.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kMostExpired = 64;  // of one poll
constexpr uint64_t kRowBytes = 512;  // about: a session without its tokens

const SharedTokens& no_tokens() {
  static const SharedTokens kNone = std::make_shared<const std::vector<TokenId>>();
  return kNone;
}

// Of sessions; with tiers a quarter of the table is for lists that are sinking.
uint64_t most_held_bytes(const SessionConfig& config) {
  return config.most_table_bytes - (config.tiering == nullptr ? 0 : config.most_table_bytes / 4);
}

tl::unexpected<Error> taken(const SessionKey& key) {
  return fail(Error{ErrorCode::kConflict, fmt::format("there is a session {} already", key.name), "session_id"});
}

tl::unexpected<Error> no_room() {
  return fail(ErrorCode::kConflict, "there is no room for a session: all are pinned or have a request running");
}

bool begins_with(std::span<const TokenId> tokens, std::span<const TokenId> beginning) {
  return tokens.size() >= beginning.size() && std::ranges::equal(tokens.first(beginning.size()), beginning);
}

}  // namespace

tl::unexpected<Error> Sessions::unknown(const SessionKey& key) {
  return fail(Error{ErrorCode::kNotFound, fmt::format("there is no session {}", key.name), "session_id"});
}

Sessions::Sessions(const SessionConfig& config) : config_(config) {
  CHECK(config.index && config.pool && config.clock && config.ttl_us > 0 && config.most_sessions > 0);
}

// The index goes too.
Sessions::~Sessions() = default;

void Sessions::add_model(SessionModel model) {
  const ModelId id = model.model;
  const bool is_new = models_.try_emplace(id, std::move(model)).second;
  CHECK(is_new);
}

Sessions::Session* Sessions::find(const SessionKey& key) {
  const auto at = table_.find(key);
  return at == table_.end() ? nullptr : at->second.get();
}
const Sessions::Session* Sessions::find(const SessionKey& key) const {
  const auto at = table_.find(key);
  return at == table_.end() ? nullptr : at->second.get();
}
Sessions::Session* Sessions::find(SessionId id) {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : at->second;
}

uint64_t Sessions::table_bytes() const { return stats_.table_bytes + table_.size() * kRowBytes + sinking_bytes_; }

// Ends the oldest idle ones until `grown`, or a new session if it is null, may have so many tokens. False, and nothing ended: the others
// are pinned or running.
bool Sessions::make_table_room(const Session* grown, size_t n_tokens) {
  std::vector<Session*> going;
  if (!find_table_room(grown, n_tokens, going)) return false;
  for (Session* oldest : going) {
    ++stats_.displaced;
    end(*oldest);
  }
  return true;
}

// Which ones would have to go.
bool Sessions::find_table_room(const Session* grown, size_t n_tokens, std::vector<Session*>& going) const {
  const uint64_t own_bytes = grown == nullptr ? 0 : kRowBytes + grown->token_ids->size() * sizeof(TokenId);
  const uint64_t new_bytes = kRowBytes + n_tokens * sizeof(TokenId);
  const uint64_t most_bytes = most_held_bytes(config_);
  if (new_bytes > most_bytes) return false;
  uint64_t bytes = table_bytes() - sinking_bytes_ - own_bytes + new_bytes;
  for (auto at = by_use_.begin(); at != by_use_.end() && bytes > most_bytes; ++at) {
    Session* oldest = by_id_.at(at->second);
    if (oldest == grown) continue;
    bytes -= kRowBytes + oldest->token_ids->size() * sizeof(TokenId);
    going.push_back(oldest);
  }
  return bytes <= most_bytes;
}

// A new one that is to have so many tokens. Null where every session there is room for is pinned or running.
Sessions::Session* Sessions::open(const SessionKey& key, int64_t ttl_us, size_t n_tokens) {
  if (table_.size() >= config_.most_sessions) {
    if (by_use_.empty()) return nullptr;
    ++stats_.displaced;
    end(*find(by_use_.begin()->second));
  }
  if (!make_table_room(nullptr, n_tokens)) return nullptr;
  ++stats_.created;
  return &make(key, ttl_us);
}

Sessions::Session& Sessions::make(const SessionKey& key, int64_t ttl_us) {
  auto session = std::make_unique<Session>();
  Session& made = *session;
  made.id = SessionId(next_id_++);
  made.key = key;
  made.token_ids = no_tokens();
  made.ttl_us = ttl_us;
  made.used_us = config_.clock->now_us();
  table_.emplace(key, std::move(session));
  by_id_.emplace(made.id, &made);
  set_idle(made);
  return made;
}

// Its blocks become ordinary ones; what the tiers have dropped of them meanwhile they are to have again.
void Sessions::end(Session& session) {
  sink(session);
  drop(session);
  set_busy(session);
  stats_.pinned -= session.is_pinned ? 1 : 0;
  set_tokens(session, no_tokens());
  forget(session);
  by_id_.erase(session.id);
  table_.erase(SessionKey(session.key));
}

void Sessions::set_idle(Session& session) {
  if (!session.is_idle()) return;
  by_expiry_.emplace(session.expires_us(), session.id);
  by_use_.emplace(session.used_us, session.id);
}

void Sessions::set_busy(Session& session) {
  by_expiry_.erase({session.expires_us(), session.id});
  by_use_.erase({session.used_us, session.id});
}

void Sessions::touch(Session& session) {
  set_busy(session);
  session.used_us = config_.clock->now_us();
  set_idle(session);
}

SessionId Sessions::enter(const SessionKey& key) {
  Session* session = find(key);
  if (session == nullptr) session = open(key, config_.ttl_us, 0);
  if (session == nullptr) return {};
  set_busy(*session);
  ++session->n_running;
  session->used_us = config_.clock->now_us();
  return session->id;
}

void Sessions::leave(SessionId id) {
  Session* session = find(id);
  if (session == nullptr) return;
  CHECK(session->n_running > 0);
  --session->n_running;
  touch(*session);
  save(*session);
}

// Whether a turn of these tokens takes the place of what the session holds: a beginning of that, or less than a block, leaves nothing new.
bool Sessions::is_news(const Session& session, ModelId model, std::span<const TokenId> token_ids) const {
  if (token_ids.size() < kBlockTokens) return false;
  return session.model != model || !begins_with(*session.token_ids, token_ids);
}

void Sessions::take(SessionTurn turn) {
  Session* session = find(turn.session);
  if (session == nullptr) return;
  CHECK(turn.path.size() == turn.token_ids.size() / kBlockTokens);
  touch(*session);
  if (!is_news(*session, turn.model, turn.token_ids)) {
    hold_again(*session);
  } else if (make_table_room(session, turn.token_ids.size())) {
    drop(*session);
    if (session->model != turn.model) forget(*session);
    session->model = turn.model;
    turn.token_ids.shrink_to_fit();  // a lease grows its list by doubling
    set_tokens(*session, std::make_shared<const std::vector<TokenId>>(std::move(turn.token_ids)));
    hold(*session, turn.path);
  }
  if (turn.end == LeaseEnd::kPause) return;
  save(*session);  // the request may have left already
  ++session->n_turns;
  ++stats_.turns;
  if (turn.copies == TierCopies::kSome) sink(*session);
}

size_t Sessions::tokens_after(SessionId id, ModelId model, std::span<const TokenId> token_ids) const {
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) return 0;
  const Session& session = *at->second;
  std::vector<Session*> going;
  const bool takes = is_news(session, model, token_ids) && find_table_room(&session, token_ids.size(), going);
  return takes ? token_ids.size() : session.token_ids->size();
}

Status Sessions::create(const SessionKey& key, std::optional<int64_t> ttl_us) {
  if (find(key) != nullptr) return taken(key);
  const Session* session = open(key, ttl_us.value_or(config_.ttl_us), 0);
  if (session == nullptr) return no_room();
  save(*session);
  return {};
}

Status Sessions::remove(const SessionKey& key) {
  Session* session = find(key);
  if (session == nullptr) return unknown(key);
  ++stats_.deleted;
  end(*session);
  return {};
}

Status Sessions::fork(const SessionKey& from, std::string name, std::optional<int64_t> ttl_us) {
  const Session* origin = find(from);
  if (origin == nullptr) return unknown(from);
  const SharedTokens token_ids = origin->token_ids;  // the oldest idle session goes: that may be the origin
  const ModelId model = origin->model;
  const SessionKey key{from.cache_namespace, std::move(name)};
  if (find(key) != nullptr) return taken(key);
  if (open(key, ttl_us.value_or(origin->ttl_us), token_ids->size()) == nullptr) return no_room();
  return put(key, model, token_ids);
}

Status Sessions::pin(const SessionKey& key, Pin pin) {
  Session* session = find(key);
  if (session == nullptr) return unknown(key);
  if (session->is_pinned == (pin == Pin::kOn)) return {};
  if (pin == Pin::kOn) {
    const uint64_t bytes = bytes_to_pin(*session), pinned = config_.index->stats().pin_bytes;
    if (pinned + bytes > pin_limit_bytes()) {
      return fail(ErrorCode::kConflict, "pinning {} takes {} bytes; {} of at most {} (half of --kv-memory) are pinned",
                  key.name, bytes, pinned, pin_limit_bytes());
    }
  }
  set_busy(*session);
  session->is_pinned = pin == Pin::kOn;
  session->used_us = config_.clock->now_us();
  stats_.pinned += session->is_pinned ? 1 : uint64_t{0} - 1;
  set_idle(*session);
  hold_again(*session);
  save(*session);
  return {};
}

Result<Sessions::Path> Sessions::path(const SessionKey& key) const {
  const Session* session = find(key);
  if (session == nullptr) return unknown(key);
  return Path{session->model, session->token_ids};
}

Status Sessions::can_put(const SessionKey& key, ModelId model, std::span<const TokenId> token_ids) const {
  const Session* session = find(key);
  if (session == nullptr || session->token_ids->empty()) return {};
  if (session->model == model && begins_with(token_ids, *session->token_ids)) return {};
  return fail(Error{ErrorCode::kConflict, fmt::format("session {} holds other tokens", key.name), "session_id"});
}

Status Sessions::put(const SessionKey& key, ModelId model, SharedTokens token_ids) {
  TRY(can_put(key, model, *token_ids));
  Session* session = find(key);
  if (session == nullptr) session = open(key, config_.ttl_us, token_ids->size());
  if (session == nullptr) return no_room();
  if (!make_table_room(session, token_ids->size())) return no_room();
  drop(*session);
  session->model = model;
  set_tokens(*session, std::move(token_ids));
  hold_again(*session);
  touch(*session);
  save(*session);
  return {};
}

void Sessions::restore(std::vector<SessionRecord> records) {
  // Where not all have room: pinned ones first, then those used last.
  std::ranges::sort(records, std::greater{}, [](const SessionRecord& record) {
    return std::pair(record.is_pinned, record.left_us - record.ttl_us);
  });
  for (const SessionRecord& record : records) {
    const auto model = std::ranges::find_if(
        models_, [&](const auto& known) { return known.second.fingerprint == record.fingerprint; });
    if (model == models_.end() || find(record.key) != nullptr) continue;
    if (record.left_us <= 0 && !record.is_pinned) continue;
    const uint64_t bytes = kRowBytes + record.token_ids->size() * sizeof(TokenId);
    if (table_.size() >= config_.most_sessions || table_bytes() + bytes > most_held_bytes(config_)) {
      if (config_.keeper != nullptr) config_.keeper->forget(record.key, record.fingerprint);
      continue;
    }
    Session& session = make(record.key, record.ttl_us);
    set_busy(session);
    session.model = model->first;
    session.is_pinned = record.is_pinned;
    session.used_us = config_.clock->now_us() - (record.ttl_us - record.left_us);
    stats_.pinned += record.is_pinned ? 1 : 0;
    set_tokens(session, record.token_ids);
    set_idle(session);
    ++stats_.restored;
  }
}

void Sessions::poll() {
  if (by_expiry_.empty() && sinking_.empty()) return;
  const int64_t now_us = config_.clock->now_us();
  for (size_t i = 0; i < kMostExpired && !by_expiry_.empty() && by_expiry_.begin()->first <= now_us; ++i) {
    ++stats_.expired;
    end(*find(by_expiry_.begin()->second));
  }
  if (sinking_.empty() || now_us < sink_us_) return;
  if (sink_some(sinking_.front())) pop_sinking();
}

std::optional<int64_t> Sessions::next_us() const {
  std::optional<int64_t> next;
  if (!by_expiry_.empty()) next = by_expiry_.begin()->first;
  if (!sinking_.empty()) next = std::min(next.value_or(sink_us_), sink_us_);
  return next;
}

void Sessions::set_tokens(Session& session, SharedTokens token_ids) {
  stats_.table_bytes += (token_ids->size() - session.token_ids->size()) * sizeof(TokenId);
  session.token_ids = std::move(token_ids);
}

void Sessions::save(const Session& session) const {
  if (config_.keeper == nullptr) return;
  const auto model = models_.find(session.model);
  if (model == models_.end()) return;
  const int64_t left_us = std::max<int64_t>(0, session.expires_us() - config_.clock->now_us());
  config_.keeper->save({.key = session.key,
                        .fingerprint = model->second.fingerprint,
                        .token_ids = session.token_ids,
                        .ttl_us = session.ttl_us,
                        .left_us = std::min(left_us, session.ttl_us),
                        .is_pinned = session.is_pinned});
}

void Sessions::forget(const Session& session) const {
  const auto model = models_.find(session.model);
  if (config_.keeper != nullptr && model != models_.end())
    config_.keeper->forget(session.key, model->second.fingerprint);
}

SessionStats Sessions::stats() const {
  SessionStats stats = stats_;
  stats.sessions = table_.size();
  stats.table_bytes = table_bytes();
  stats.pin_limit_bytes = pin_limit_bytes();
  stats.sinking = sinking_.size();
  return stats;
}

}  // namespace pagoda::kv
