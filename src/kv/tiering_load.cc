// Tiering, what to load: where the blocks are, how many in a row are worth it, and room for them.
#include <algorithm>

#include "base/check.h"
#include "kv/block_table.h"
#include "kv/tiering.h"

namespace pagoda::kv {
namespace {

constexpr size_t kMostBlocks = 256;             // of one load: what others can use meanwhile stays bounded
constexpr int64_t kForgetUs = 10'000'000;       // a read rate is believed for so long
constexpr int64_t kLeastWaitUs = 20'000;        // shorter deadlines would only measure the engine's steps
constexpr double kAskShare = 8;                 // asking takes at most this part of what computing takes
constexpr double kNewestAsk = 0.25;             // of a moving average
constexpr int64_t kUnmeasuredWaitUs = 200'000;  // before it is known how long computing takes

}  // namespace

BlockTokens Tiering::tokens_of(const Load& load, size_t block) const {
  return std::span(load.token_ids).subspan(block * kBlockTokens).first<kBlockTokens>();
}

NodeId Tiering::find_root(const Load& load) const {
  return index_.find_root(load.model->spec.owner, load.model->spec.fingerprint, load.cache_namespace);
}

// Of the block behind those that the caller holds.
TierKey Tiering::next_key(const TierLookup& wanted) const {
  const size_t held = wanted.keys.size() - 1;
  return tier_key(wanted.keys.back(), wanted.token_ids.subspan(held * kBlockTokens).first<kBlockTokens>());
}

// The next block, or its windows: the glance that a cold prompt costs.
bool Tiering::may_have(const TierLookup& wanted, const TierKey& next) const {
  const size_t held = wanted.keys.size() - 1;
  const BlockTokens tokens = wanted.token_ids.subspan(held * kBlockTokens).first<kBlockTokens>();
  if (index_.trie().find(wanted.at, tokens) != kNoNode) return true;
  const std::vector<PrefixOwner::Group>& groups = models_.at(wanted.model).spec.groups;
  for (const Store& store : stores_) {
    for (uint32_t g = 0; g < groups.size(); ++g) {
      if (groups[g].window_tokens > 0 && groups.size() > 1) continue;
      const Presence presence = store.store->presence({next, GroupId(g)});
      if (presence == Presence::kYes || (presence == Presence::kUnknown && wanted.asking == TierAsking::kMay))
        return true;
    }
  }
  // Of windows alone the last ones are kept.
  return std::ranges::all_of(groups, [](const PrefixOwner::Group& group) { return group.window_tokens > 0; });
}

LoadAnswer Tiering::load(const TierLookup& wanted) {
  const Model& model = models_.at(wanted.model);
  CHECK(model.identity && !wanted.keys.empty() && !wanted.token_ids.empty());
  const size_t first = wanted.keys.size() - 1;
  const size_t end = std::min((wanted.token_ids.size() - 1) / kBlockTokens, first + kMostBlocks);
  if (end <= first || stores_.empty()) return {};
  const TierKey next = next_key(wanted);
  if (const auto at = loading_.find({next, GroupId(0)}); at != loading_.end()) {
    return {at->second->ticket, deadline_us(*at->second, first), {}};
  }
  if (const Failure* failure = find_failure(next)) return {{}, 0, failure->miss};
  if (!may_have(wanted, next)) return {};

  Load& load = add_load(wanted, next, end);
  if (wanted.asking == TierAsking::kNever) load.phase = Load::Phase::kAsking;
  walk(load);
  if (ask(load)) return {load.ticket, deadline_us(load, first), {}};
  std::optional<TierMiss> miss = begin(load);
  if (!miss) {
    advance(load);
    if (load.phase != Load::Phase::kDone || load.n_reading > 0) return {load.ticket, deadline_us(load, first), {}};
    completed_.pop_back();  // nobody knows of it
    miss = TierMiss::kAbsent;
  } else {
    cut(load, first);
  }
  loads_.pop_back();
  publish();
  return {{}, 0, *miss};
}

LoadAnswer Tiering::explain(const TierLookup& wanted) const {
  const Failure* failure = find_failure(next_key(wanted));
  return {{}, 0, failure != nullptr ? failure->miss : TierMiss::kAbsent};
}

Tiering::Load& Tiering::add_load(const TierLookup& wanted, const TierKey& next, size_t end) {
  Load& load = loads_.emplace_back();
  load.ticket = new_ticket();
  load.model = &models_.at(wanted.model);
  load.cache_namespace = wanted.cache_namespace;
  load.first = wanted.keys.size() - 1;
  load.end = end;
  load.worth = wanted.worth;
  load.begin_us = clock_.now_us();
  const std::span<const TokenId> whole = wanted.token_ids.first(end * kBlockTokens);
  load.token_ids.assign(whole.begin(), whole.end());
  load.keys.assign(wanted.keys.begin(), wanted.keys.end());
  load.keys.push_back(next);
  while (load.keys.size() <= end)
    load.keys.push_back(tier_key(load.keys.back(), tokens_of(load, load.keys.size() - 1)));
  for (size_t b = load.first; b < end; ++b) loading_.try_emplace({load.keys[b + 1], GroupId(0)}, &load);
  return load;
}

// What RAM has of the load's path now.
void Tiering::walk(const Load& load) {
  walked_.assign(load.end, kNoNode);
  NodeId at = find_root(load);
  for (size_t b = 0; b < load.end && at != kNoNode; ++b) at = walked_[b] = index_.trie().find(at, tokens_of(load, b));
}

// The tier to read a block from. Requires walk().
size_t Tiering::where(const Load& load, size_t block, GroupId group) const {
  if (walked_[block] != kNoNode && !index_.block(walked_[block], group).is_none()) return kInRam;
  const TierObject object{load.keys[block + 1], group};
  bool is_unknown = false;
  for (size_t i = 0; i < stores_.size(); ++i) {
    const Presence presence = stores_[i].store->presence(object);
    if (presence == Presence::kYes) return i;
    is_unknown |= presence == Presence::kUnknown;
  }
  if (const auto at = load.asked.find(object); at != load.asked.end()) return at->second;
  return is_unknown && load.phase == Load::Phase::kNew ? kUnknown : kNowhere;
}

// Before `first` where its windows reach back.
size_t Tiering::first_window_block(const Load& load) const {
  size_t first = load.first;
  for (const PrefixOwner::Group& group : load.model->spec.groups) {
    if (group.window_tokens == 0) continue;
    const auto n_tokens = static_cast<int32_t>((load.first + 1) * kBlockTokens);
    first = std::min(first, blocks_out_of_window(group.window_tokens, n_tokens));
  }
  return first;
}

// Blocks [first, reach) are somewhere in every full group.
size_t Tiering::reach(const Load& load, size_t limit) const {
  const std::vector<PrefixOwner::Group>& groups = load.model->spec.groups;
  for (size_t b = load.first; b < limit; ++b) {
    for (uint32_t g = 0; g < groups.size(); ++g) {
      if (groups[g].window_tokens == 0 && where(load, b, GroupId(g)) == kNowhere) return b;
    }
  }
  return limit;
}

// The end of the longest run, up to `limit`, behind which a token would see its windows; `first` if there is none.
size_t Tiering::longest_run(const Load& load, size_t limit) const {
  const std::vector<PrefixOwner::Group>& groups = load.model->spec.groups;
  const size_t end = reach(load, limit);
  std::array<size_t, kMaxGroups> runs{};
  size_t longest = load.first;
  for (size_t b = first_window_block(load); b < end; ++b) {
    bool is_seen = b >= load.first;
    for (uint32_t g = 0; g < groups.size(); ++g) {
      const int32_t window = groups[g].window_tokens;
      if (window == 0) continue;
      runs[g] = where(load, b, GroupId(g)) == kNowhere ? 0 : runs[g] + 1;
      const size_t n_out = blocks_out_of_window(window, static_cast<int32_t>((b + 1) * kBlockTokens));
      is_seen = is_seen && runs[g] >= b + 1 - n_out;
    }
    if (is_seen) longest = b + 1;
  }
  return longest;
}

// Whether a tier that keeps no index is being asked what it has of all this.
bool Tiering::ask(Load& load) {
  std::vector<TierObject> objects;
  const size_t end = reach(load, load.end);
  for (size_t b = first_window_block(load); b < end; ++b) {
    for (uint32_t g = 0; g < load.model->spec.groups.size(); ++g) {
      if (b < load.first && load.model->spec.groups[g].window_tokens == 0) continue;
      if (where(load, b, GroupId(g)) == kUnknown) objects.push_back({load.keys[b + 1], GroupId(g)});
    }
  }
  load.phase = Load::Phase::kAsking;
  if (objects.empty()) return false;
  for (Store& store : stores_) {
    if (store.store->presence(objects.front()) != Presence::kUnknown) continue;
    if (!is_worth_asking(store, load)) {
      load.was_not_asked = true;
      continue;
    }
    const TicketId ticket = new_ticket();
    if (!store.store->ask(ticket, objects)) continue;
    add_asking(store, ticket, &load, objects);
    ++load.n_asks;
  }
  publish();
  return load.n_asks > 0;
}

// A cold prompt waits for the answer in vain: at most for a small part of what computing it takes. Now and then it is tried all the same,
// and an ask that is still out counts as long as it has been.
bool Tiering::is_worth_asking(const Store& store, const Load& load) const {
  const int64_t now_us = clock_.now_us();
  const double compute = compute_us(load, load.first);
  double us = store.ask_us;
  if (!store.asks_us.empty()) {
    us = std::max(us, static_cast<double>(now_us - store.asks_us.front()));
  } else if (now_us - store.asked_us > kForgetUs) {
    return true;
  }
  return compute <= 0 || us * kAskShare <= compute;
}

double Tiering::compute_us(const Load& load, size_t first) const {
  return static_cast<double>((load.end - std::min(first, load.end)) * kBlockTokens) * load.model->us_per_token;
}

void Tiering::add_asking(Store& store, TicketId ticket, Load* load, std::vector<TierObject> objects) {
  store.asks_us.push_back(clock_.now_us());
  askings_.emplace(ticket, Asking{load, std::move(objects), std::prev(store.asks_us.end())});
  ++stats_.asks;
}

void Tiering::settle_ask(size_t tier, const TierDone& done) {
  const auto at = askings_.find(done.ticket);
  CHECK(at != askings_.end());
  const auto [load, objects, since] = std::move(at->second);
  askings_.erase(at);
  Store& store = stores_[tier];
  const auto us = static_cast<double>(clock_.now_us() - *since);
  store.ask_us += (store.asked_us == 0 ? 1 : kNewestAsk) * (us - store.ask_us);
  store.asked_us = clock_.now_us();
  store.asks_us.erase(since);
  if (load != nullptr) --load->n_asks;
  if (done.outcome != TierOutcome::kDone || done.is_present.size() != objects.size()) return;
  if (load == nullptr) {
    for (size_t i = 0; i < objects.size(); ++i) {
      Said& said = said_of(objects[i]);
      if (said.object == objects[i]) said.presence = done.is_present[i] != 0 ? Presence::kYes : Presence::kNo;
    }
    return;
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    if (done.is_present[i] == 0) continue;
    load->asked.emplace(objects[i], tier);
    note_there(store, objects[i]);
  }
}

// Chooses the run and takes room for it; or says why not. Requires walk().
std::optional<TierMiss> Tiering::begin(Load& load) {
  load.phase = Load::Phase::kReading;
  TierMiss miss = load.was_not_asked ? TierMiss::kSlow : TierMiss::kAbsent;
  for (size_t limit = load.end; limit > load.first;) {
    const size_t end = longest_run(load, limit);
    if (end == load.first) break;
    cut(load, end);
    list_pieces(load);
    if (load.worth == TierWorth::kIfFaster && is_slower(load)) {
      ++stats_.loads_slow;
      load.pieces.clear();
      return TierMiss::kSlow;
    }
    if (allocate(load)) {
      ++stats_.loads;
      return std::nullopt;
    }
    load.pieces.clear();
    miss = TierMiss::kNoRoom;
    limit = load.first + (end - load.first) / 2;
  }
  if (miss == TierMiss::kNoRoom) ++stats_.loads_no_room;
  return miss;
}

// Windows only where the token behind the run would see them.
void Tiering::list_pieces(Load& load) const {
  const std::vector<PrefixOwner::Group>& groups = load.model->spec.groups;
  const auto n_tokens = static_cast<int32_t>(load.end * kBlockTokens);
  for (size_t b = first_window_block(load); b < load.end; ++b) {
    for (uint32_t g = 0; g < groups.size(); ++g) {
      const int32_t window = groups[g].window_tokens;
      if (b < (window == 0 ? load.first : blocks_out_of_window(window, n_tokens))) continue;
      const size_t tier = where(load, b, GroupId(g));
      if (tier < stores_.size())
        load.pieces.push_back({.block = b, .group = GroupId(g), .tier = tier, .dest = kNoBlock});
    }
  }
}

bool Tiering::allocate(Load& load) {
  const std::vector<PrefixOwner::Group>& groups = load.model->spec.groups;
  needs_.clear();
  for (const PrefixOwner::Group& group : groups) needs_.push_back({group.size_class, 0});
  for (const Piece& piece : load.pieces) ++needs_[piece.group.value].n_blocks;
  if (!index_.make_room(needs_)) return false;
  for (Piece& piece : load.pieces) {
    const std::optional<BlockId> block = pool_.allocate(groups[piece.group.value].size_class);
    CHECK(block);  // make_room() said so
    piece.dest = *block;
  }
  return true;
}

// By what was measured. Where nothing was, or not for a while, it is tried: a tier that was busy once is not given up.
bool Tiering::is_slower(const Load& load) const {
  if (load.model->us_per_token <= 0) return false;
  std::array<size_t, kMaxTiers> bytes{};
  for (const Piece& piece : load.pieces) bytes[piece.tier] += load.model->block_bytes(pool_, piece.group);
  double us = 0;
  for (size_t i = 0; i < stores_.size(); ++i) {
    if (bytes[i] == 0) continue;
    const Store& store = stores_[i];
    if (clock_.now_us() - store.read_us > kForgetUs) return false;
    us = std::max(us, store.store->stats().expected_read_us(bytes[i] + store.get_bytes));
  }
  return us > compute_us(load, load.first);
}

// Nobody waits longer than computing takes.
int64_t Tiering::deadline_us(const Load& load, size_t first) const {
  const double us = compute_us(load, first);
  const int64_t wait_us = us > 0 ? std::max(kLeastWaitUs, static_cast<int64_t>(us)) : kUnmeasuredWaitUs;
  return clock_.now_us() + std::min(wait_us, config_.load_wait_us);
}

}  // namespace pagoda::kv
