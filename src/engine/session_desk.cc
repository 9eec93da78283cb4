#include "engine/session_desk.h"

#include <algorithm>

#include "base/digest.h"
#include "engine/intake.h"
#include "engine/model_root.h"

namespace pagoda::engine {
namespace {

constexpr int64_t kExportWaitUs = 10'000'000;  // for a tier; then a part holds what there is
constexpr int64_t kRetryUs = 100'000;          // completions wake the engine sooner
constexpr size_t kMostExports = 16;            // that wait
constexpr uint32_t kMostListed = 1000;

// In a shared space sessions of several tenants have one namespace: what goes before their names keeps them apart.
std::string name_prefix(const Secret& secret, std::string_view tenant, std::string_view cache_space) {
  if (cache_space.empty()) return {};
  return to_hex(cache_namespace(secret, cache_owner(tenant, {}), "session").bits[0]) + ".";
}

void erase_all(std::string& text, std::string_view part) {
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos;) text.erase(at, part.size());
}

void strip(Result<SessionAnswer>& answer, std::string_view prefix) {
  if (!answer) return erase_all(answer.error().message, prefix);
  if (auto* report = std::get_if<SessionReport>(&*answer)) report->info.name.erase(0, prefix.size());
  auto* page = std::get_if<SessionPage>(&*answer);
  if (page == nullptr) return;
  std::erase_if(page->sessions, [&](const kv::SessionInfo& info) { return !info.name.starts_with(prefix); });
  for (kv::SessionInfo& info : page->sessions) info.name.erase(0, prefix.size());
}

}  // namespace

SessionDesk::SessionDesk(StepRunner& runner, const Clock& clock, const Secret& secret, size_t part_bytes,
                         std::function<void()> wake)
    : runner_(runner), clock_(clock), secret_(secret), wake_(std::move(wake)) {
  if (runner.sessions() != nullptr) {
    transfer_.emplace(runner.session_memory(), secret_, part_bytes);
  }
}

kv::SessionId SessionDesk::enter(const Request& request) {
  if (request.session_id.empty() || runner_.sessions() == nullptr) return {};
  std::string name = name_prefix(secret_, request.tenant, request.cache_space) + request.session_id;
  if (!kv::is_session_name(name)) return {};
  return runner_.sessions()->enter({cache_namespace(secret_, request), std::move(name)});
}

void SessionDesk::leave(kv::SessionId session) {
  if (session != kv::SessionId()) runner_.sessions()->leave(session);
}

int32_t SessionDesk::held_after(kv::SessionId session, std::span<const TokenId> token_ids) const {
  if (session == kv::SessionId()) return 0;
  const size_t n_tokens = runner_.sessions()->tokens_after(session, runner_.model_id(), token_ids);
  return static_cast<int32_t>(n_tokens / kv::kBlockTokens) * kv::kBlockTokens;
}

void SessionDesk::ask(SessionAsk ask, Reply reply) {
  const std::string prefix = name_prefix(secret_, ask.tenant, ask.cache_space);
  if (prefix.empty()) return ask_table(std::move(ask), std::move(reply));
  for (std::string* name : {&ask.name, &ask.new_name}) {
    if (name->size() + prefix.size() > kv::kMaxSessionName) {
      return reply(
          fail(Error{ErrorCode::kInvalidArgument,
                     fmt::format("session ids of a tenant with a shared cache space have at most {} characters",
                                 kv::kMaxSessionName - prefix.size()),
                     "session_id"}));
    }
    name->insert(0, prefix);
  }
  ask_table(std::move(ask), [prefix, reply = std::move(reply)](Result<SessionAnswer> answer) {
    strip(answer, prefix);
    reply(std::move(answer));
  });
}

void SessionDesk::ask_table(SessionAsk ask, Reply reply) {
  if (!transfer_) {
    return reply(fail(ErrorCode::kUnsupported, "there are no sessions where prefixes are not cached (--prefix-cache)"));
  }
  if (ask.verb != SessionAsk::Verb::kExport) return reply(answer(ask));
  Waiting waiting{std::move(ask), std::move(reply), clock_.now_us() + kExportWaitUs};
  if (try_export(waiting)) return;
  if (waiting_.size() >= kMostExports) {
    return waiting.reply(fail(ErrorCode::kOverloaded, "{} exports wait for a tier already", waiting_.size()));
  }
  waiting_.push_back(std::move(waiting));
}

void SessionDesk::poll() {
  for (size_t n = waiting_.size(); n > 0; --n) {
    Waiting waiting = std::move(waiting_.front());
    waiting_.pop_front();
    if (!try_export(waiting)) waiting_.push_back(std::move(waiting));
  }
}

std::optional<int64_t> SessionDesk::next_us() const {
  std::optional<int64_t> next;
  if (runner_.sessions() != nullptr) next = runner_.sessions()->next_us();
  if (!waiting_.empty()) next = std::min(next.value_or(INT64_MAX), clock_.now_us() + kRetryUs);
  return next;
}

kv::SessionKey SessionDesk::key_of(const SessionAsk& ask) const {
  return {cache_namespace(secret_, cache_owner(ask.tenant, ask.cache_space), ask.cache_salt), ask.name};
}

bool SessionDesk::try_export(const Waiting& waiting) {
  const SessionAsk& ask = waiting.ask;
  const Result<Sha256> known = identity();
  if (!known) {
    waiting.reply(fail(known.error()));
    return true;
  }
  const kv::SessionKey key = key_of(ask);
  const auto patience = clock_.now_us() < waiting.until_us ? kv::Patience::kMayWait : kv::Patience::kNever;
  auto made = transfer_->export_part(key, ask.number, *known, patience);
  if (made && std::holds_alternative<kv::WaitOn>(*made)) return false;
  if (!made) {
    waiting.reply(fail(std::move(made).error()));
  } else {
    auto& exported = std::get<kv::SessionTransfer::Exported>(*made);
    waiting.reply(SessionBytes{std::move(exported.bytes), exported.n_parts});
  }
  return true;
}

Result<SessionAnswer> SessionDesk::answer(const SessionAsk& ask) {
  using Verb = SessionAsk::Verb;
  kv::Sessions& sessions = *runner_.sessions();
  const kv::SessionKey key = key_of(ask);
  switch (ask.verb) {
    case Verb::kList:
      return SessionPage{sessions.list(key.cache_namespace, ask.name, std::min(ask.number, kMostListed))};
    case Verb::kDelete:
      TRY(sessions.remove(key));
      return SessionEnded{};
    case Verb::kCreate:
      TRY(sessions.create(key, ask.ttl_us));
      return report(key);
    case Verb::kFork:
      TRY(sessions.fork(key, ask.new_name, ask.ttl_us));
      return report({key.cache_namespace, ask.new_name});
    case Verb::kPin:
      TRY(sessions.pin(key, kv::Sessions::Pin::kOn));
      return report(key);
    case Verb::kUnpin:
      TRY(sessions.pin(key, kv::Sessions::Pin::kOff));
      return report(key);
    case Verb::kImport: {
      TRY_ASSIGN(const Sha256 known, identity());
      TRY(transfer_->import_part(key, runner_.model_id(), std::as_bytes(std::span(ask.bytes)), known));
      return report(key);
    }
    case Verb::kGet:
    case Verb::kExport:
      break;
  }
  return report(key);
}

Result<SessionAnswer> SessionDesk::report(const kv::SessionKey& key) {
  const kv::Sessions& sessions = *runner_.sessions();
  SessionReport report;
  TRY_ASSIGN(report.info, sessions.info(key));
  TRY_ASSIGN(report.places, sessions.places(key));
  if (const KvTiers* tiers = runner_.tiers()) report.tier_names.assign(tiers->names().begin(), tiers->names().end());
  return report;
}

// What tiers know the model by. Without tiers it is made when it is first asked for.
Result<Sha256> SessionDesk::identity() {
  if (KvTiers* tiers = runner_.tiers(); tiers != nullptr && !identity_) {
    identity_ = tiers->tiering().identity(runner_.model_id());
  } else if (!identity_) {
    if (!digest_) digest_ = std::make_unique<FileDigest>(runner_.files(), std::filesystem::path(), wake_);
    if (const std::optional<Sha256> digest = digest_->take())
      identity_ = model_identity(describe_computation(runner_.model().groups(), runner_.arithmetic()), *digest);
  }
  if (identity_) return *identity_;
  const KvTiers* tiers = runner_.tiers();
  if (tiers != nullptr ? tiers->is_lost(runner_.model_id()) : digest_->has_failed()) {
    return fail(ErrorCode::kConflict, "the model's file changed since it was loaded: nothing names its blocks");
  }
  return fail(ErrorCode::kUnavailable, "the digest of the model's files, which names exported blocks, is being made");
}

}  // namespace pagoda::engine
