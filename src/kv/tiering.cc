#include "kv/tiering.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace pagoda::kv {
namespace {

constexpr size_t kSaid = 4096;
constexpr size_t kMostUnsure = 256;          // objects of one ask
constexpr int64_t kAskAgainUs = 60'000'000;  // what a tier without an index said is believed for so long

}  // namespace

Tiering::Tiering(BlockPool& pool, PrefixIndex& index, BlockIo& arena, const Clock& clock, const TieringConfig& config)
    : pool_(pool), index_(index), clock_(clock), config_(config), staging_(arena, config.staging_bytes) {}

// After the stores are closed nobody writes the blocks any more.
Tiering::~Tiering() {
  stores_.clear();
  for (Load& load : loads_) {
    for (Piece& piece : load.pieces) {
      if (piece.state != Piece::State::kGone) pool_.unref(piece.dest);
    }
  }
}

void Tiering::add_store(std::unique_ptr<TierStore> store) {
  CHECK(store && stores_.size() < kMaxTiers);
  if (store->presence({}) == Presence::kUnknown) said_.resize(kSaid);
  stores_.push_back({.store = std::move(store), .read_us = clock_.now_us()});
}

void Tiering::add_model(TierModel model) {
  CHECK(!model.groups.empty() && model.groups.size() <= kMaxGroups);
  const ModelId id = model.model;
  const bool is_new = models_.try_emplace(id, Model{.spec = std::move(model), .identity = {}}).second;
  CHECK(is_new);
}

void Tiering::set_identity(ModelId model, const Sha256& identity) { models_.at(model).identity = identity; }

TierKey Tiering::root_key(ModelId model, const CacheNamespace& cache_namespace) const {
  const std::optional<Sha256>& identity = models_.at(model).identity;
  CHECK(identity);
  return tier_root(*identity, cache_namespace);
}

void Tiering::store(ModelId model, const TierObject& object, BlockId block) {
  const Outcome outcome = put_where(model, object, block, [](Presence p) { return p != Presence::kYes; });
  if (outcome != Outcome::kRefused) return;
  ++stats_.unstored_blocks;
  publish();
}

bool Tiering::store_again(ModelId model, const TierObject& object, BlockId block) {
  if (storing_.contains(object)) return true;
  const Said said = said_.empty() ? Said{} : said_of(object);
  const bool is_said = said.object == object && clock_.now_us() < said.until_us;
  const bool is_lost = is_said && said.presence == Presence::kNo;
  const Outcome outcome = put_where(
      model, object, block, [&](Presence p) { return p == Presence::kNo || (p == Presence::kUnknown && is_lost); });
  if (is_lost && outcome == Outcome::kBegun) said_of(object).until_us = 0;
  if (!said_.empty() && !is_said && unsure_.size() < kMostUnsure) unsure_.push_back(object);
  return outcome != Outcome::kRefused;
}

void Tiering::ask_again() {
  if (unsure_.empty()) return;
  const int64_t until_us = clock_.now_us() + kAskAgainUs;
  for (Store& store : stores_) {
    const TicketId ticket = new_ticket();
    if (store.store->presence(unsure_.front()) != Presence::kUnknown || !store.store->ask(ticket, unsure_)) continue;
    for (const TierObject& object : unsure_) said_of(object) = {object, Presence::kUnknown, until_us};
    add_asking(store, ticket, nullptr, unsure_);
  }
  unsure_.clear();
}

std::optional<size_t> Tiering::find(const TierObject& object) const {
  for (size_t i = 0; i < stores_.size(); ++i) {
    if (stores_[i].store->presence(object) == Presence::kYes) return i;
  }
  return std::nullopt;
}

Tiering::Outcome Tiering::put_where(ModelId model, const TierObject& object, BlockId block,
                                    const std::function<bool(Presence)>& lacks) {
  const Model& known = models_.at(model);
  if (!known.identity || storing_.contains(object)) return Outcome::kNotWanted;
  const auto wants = [&](const Store& store) { return lacks(store.store->presence(object)); };
  if (std::ranges::none_of(stores_, wants)) return Outcome::kNotWanted;
  const size_t bytes = known.block_bytes(pool_, object.group);
  const bool is_windowed = known.spec.groups[object.group.value].window_tokens > 0;
  const TierUse use = is_windowed ? TierUse::kReplay : TierUse::kContext;
  const std::optional<BlockId> staged = staging_.add(model, object.group, block, bytes);
  auto put = std::make_shared<Put>(Put{.object = object, .staged = staged.value_or(kNoBlock), .bytes = bytes});
  for (size_t i = 0; staged && i < stores_.size(); ++i) {
    if (!wants(stores_[i])) continue;
    const TicketId ticket = new_ticket();
    if (!stores_[i].store->put(ticket, object, {model, *staged, bytes, use}, std::nullopt)) continue;
    ++put->n_open;
    puts_.emplace(ticket, put);
  }
  if (put->n_open == 0) {
    if (staged) staging_.remove(*staged);
    return Outcome::kRefused;
  }
  storing_.insert(object);
  stats_.staged_bytes = staging_.used_bytes();
  publish();
  return Outcome::kBegun;
}

// What was just put, or found, need not be asked about.
void Tiering::note_there(const Store& store, const TierObject& object) {
  if (said_.empty()) return;
  if (store.store->presence(object) == Presence::kUnknown)
    said_of(object) = {object, Presence::kYes, clock_.now_us() + kAskAgainUs};
}

void Tiering::settle_put(TicketId ticket, TierOutcome outcome) {
  const auto at = puts_.find(ticket);
  CHECK(at != puts_.end());
  const std::shared_ptr<Put> put = std::move(at->second);
  puts_.erase(at);
  put->is_stored |= outcome == TierOutcome::kDone;
  if (--put->n_open > 0) return;
  staging_.remove(put->staged);
  storing_.erase(put->object);
  stats_.stored_blocks += put->is_stored ? 1 : 0;
  stats_.stored_bytes += put->is_stored ? put->bytes : 0;
  stats_.unstored_blocks += put->is_stored ? 0 : 1;
  stats_.staged_bytes = staging_.used_bytes();
}

void Tiering::take_completed(std::vector<TicketId>& tickets) {
  bool is_new = false;
  for (size_t i = 0; i < stores_.size(); ++i) {
    done_.clear();
    stores_[i].store->take_done(done_);
    for (const TierDone& done : done_) {
      is_new = true;
      if (done.verb == TierVerb::kPut) {
        if (done.outcome == TierOutcome::kDone) note_there(stores_[i], puts_.at(done.ticket)->object);
        settle_put(done.ticket, done.outcome);
      }
      if (done.verb == TierVerb::kGet) settle_get(done.ticket, done.outcome);
      if (done.verb == TierVerb::kAsk) settle_ask(i, done);
    }
  }
  if (is_new) {
    std::erase_if(loads_, [this](Load& load) { return advance(load); });
    publish();
  }
  tickets.insert(tickets.end(), completed_.begin(), completed_.end());
  completed_.clear();
}

std::optional<size_t> Tiering::take_restored(NodeId id) {
  const std::optional<size_t> tier = index_.take_origin(id);
  if (!tier) return std::nullopt;
  stats_.restored_tokens[*tier] += kBlockTokens;
  publish();
  return tier;
}

void Tiering::for_each_block(ModelId model, const std::function<void(GroupId, BlockId)>& visit) const {
  for (const Load& load : loads_) {
    if (load.model->spec.model != model) continue;
    for (const Piece& piece : load.pieces) {
      if (piece.state != Piece::State::kGone) visit(piece.group, piece.dest);
    }
  }
}

Status Tiering::check_integrity() const {
  size_t n_reading = 0, n_asks = 0;
  std::array<size_t, kMaxTiers> by_tier{};
  for (const Load& load : loads_) {
    n_asks += static_cast<size_t>(load.n_asks);
    size_t n = 0;
    for (size_t i = 0; i < load.pieces.size(); ++i) {
      const Piece& piece = load.pieces[i];
      if (piece.state == Piece::State::kReading) {
        ++n;
        ++by_tier[piece.tier];
      }
      if (piece.state != Piece::State::kGone && pool_.state(piece.dest) != BlockState::kOpen) {
        return fail(ErrorCode::kInternal, "block {} is loaded, and not open", piece.dest.value);
      }
      if (i < load.next_piece && piece.state != Piece::State::kGone && piece.state != Piece::State::kReading) {
        return fail(ErrorCode::kInternal, "a piece of block {} was forgotten", piece.block);
      }
    }
    if (n != load.n_reading || (load.phase == Load::Phase::kDone && n == 0)) {
      return fail(ErrorCode::kInternal, "a load reads {} blocks, counts {}", n, load.n_reading);
    }
    n_reading += n;
  }
  for (size_t i = 0; i < stores_.size(); ++i) {
    if (by_tier[i] != stores_[i].n_gets) return fail(ErrorCode::kInternal, "tier {}: {} gets", i, stores_[i].n_gets);
  }
  const auto n_askings = static_cast<size_t>(
      std::ranges::count_if(askings_, [](const auto& asking) { return asking.second.load != nullptr; }));
  if (n_reading != readings_.size() || n_asks != n_askings) {
    return fail(ErrorCode::kInternal, "{} readings of {}, {} asks of {}", readings_.size(), n_reading, n_askings,
                n_asks);
  }
  if (puts_.empty() && (staging_.used_bytes() > 0 || !storing_.empty())) {
    return fail(ErrorCode::kInternal, "{} bytes staged for nobody", staging_.used_bytes());
  }
  return {};
}

}  // namespace pagoda::kv
