// Tiering, the loads that run: blocks come in any order, and become nodes of the prefix index in theirs.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/tiering.h"

namespace pagoda::kv {
namespace {

constexpr size_t kMostGets = 64;         // with one store at once
constexpr int64_t kRetryUs = 1'000'000;  // what failed is not tried again before

TierMiss miss_of(TierOutcome outcome) {
  return outcome == TierOutcome::kCorrupt ? TierMiss::kCorrupt : TierMiss::kAbsent;
}

}  // namespace

void Tiering::remember(const TierKey& key, TierMiss miss) {
  failures_[failure_at(key)] = {key, miss, clock_.now_us() + kRetryUs};
}

const Tiering::Failure* Tiering::find_failure(const TierKey& key) const {
  const Failure& failure = failures_[failure_at(key)];
  return failure.key == key && clock_.now_us() < failure.until_us ? &failure : nullptr;
}

// One turn. True: it is over, and nobody writes its blocks any more.
bool Tiering::advance(Load& load) {
  if (load.phase == Load::Phase::kAsking && load.n_asks == 0) {
    walk(load);
    if (const std::optional<TierMiss> miss = begin(load)) {
      remember(load.keys[load.first + 1], *miss);
      cut(load, load.first);
    }
  }
  if (load.phase == Load::Phase::kReading) {
    read_more(load);
    add_nodes(load);
    const auto is_wanted = [&](const Piece& piece) {
      return piece.block < load.end && piece.state != Piece::State::kGone;
    };
    if (std::ranges::none_of(load.pieces, is_wanted)) finish(load);
  }
  return load.phase == Load::Phase::kDone && load.n_reading == 0;
}

void Tiering::read_more(Load& load) {
  for (; load.next_queued < load.pieces.size(); ++load.next_queued) {
    Piece& piece = load.pieces[load.next_queued];
    if (piece.state != Piece::State::kQueued) continue;
    Store& store = stores_[piece.tier];
    if (store.n_gets >= kMostGets) return;
    const TicketId ticket = new_ticket();
    const size_t bytes = load.model->block_bytes(pool_, piece.group);
    const TierObject object{load.keys[piece.block + 1], piece.group};
    if (!store.store->get(ticket, object, {load.model->spec.model, piece.dest, bytes})) {
      if (store.n_gets > 0) return;  // its queue is full, perhaps: again when something has come
      fail_piece(load, piece, TierOutcome::kAbsent);
      continue;
    }
    piece.state = Piece::State::kReading;
    readings_.emplace(ticket, Reading{&load, load.next_queued});
    ++load.n_reading;
    ++store.n_gets;
    store.get_bytes += bytes;
  }
}

void Tiering::settle_get(TicketId ticket, TierOutcome outcome) {
  const auto at = readings_.find(ticket);
  CHECK(at != readings_.end());
  Load& load = *at->second.load;
  Piece& piece = load.pieces[at->second.piece];
  readings_.erase(at);
  const size_t bytes = load.model->block_bytes(pool_, piece.group);
  --load.n_reading;
  --stores_[piece.tier].n_gets;
  stores_[piece.tier].get_bytes -= bytes;
  stores_[piece.tier].read_us = clock_.now_us();
  if (outcome == TierOutcome::kDone) {
    ++stats_.loaded_blocks;
    stats_.loaded_bytes[piece.tier] += bytes;
  }
  piece.state = Piece::State::kThere;
  if (piece.block >= load.end) {
    free_piece(piece);
    ++stats_.unused_blocks;
  } else if (outcome != TierOutcome::kDone) {
    fail_piece(load, piece, outcome);
  }
}

// A block of a full group ends the run. Without one of a window the others are still good for other hits.
void Tiering::fail_piece(Load& load, Piece& piece, TierOutcome outcome) {
  free_piece(piece);
  ++stats_.loads_cut;
  stats_.loads_corrupt += outcome == TierOutcome::kCorrupt ? 1 : 0;
  remember(load.keys[piece.block + 1], miss_of(outcome));
  if (load.model->spec.groups[piece.group.value].window_tokens == 0) {
    cut(load, piece.block);
  } else {
    remember(load.keys[load.first + 1], miss_of(outcome));
  }
}

void Tiering::free_piece(Piece& piece) {
  pool_.unref(piece.dest);
  piece.state = Piece::State::kGone;
}

// Blocks [end, ...) are wanted no more. Those being read go when they have come.
void Tiering::cut(Load& load, size_t end) {
  if (end >= load.end) return;
  for (size_t b = std::max(end, load.first); b < load.end; ++b) {
    const auto at = loading_.find({load.keys[b + 1], GroupId(0)});
    if (at != loading_.end() && at->second == &load) loading_.erase(at);
  }
  load.end = end;
  for (Piece& piece : load.pieces) {
    if (piece.block < end || piece.dest.is_none()) continue;
    if (piece.state == Piece::State::kQueued || piece.state == Piece::State::kThere) free_piece(piece);
  }
}

void Tiering::finish(Load& load) {
  cut(load, load.first);
  load.phase = Load::Phase::kDone;
  completed_.push_back(load.ticket);
  stats_.load_wait_us += static_cast<uint64_t>(clock_.now_us() - load.begin_us);
}

// Whole blocks that have come, in order. Where the path above them was evicted meanwhile, they are freed.
void Tiering::add_nodes(Load& load) {
  size_t ready = load.end;
  bool has_new = false;
  for (size_t i = load.next_piece; i < load.pieces.size() && load.pieces[i].block < ready; ++i) {
    const Piece::State state = load.pieces[i].state;
    if (state == Piece::State::kQueued || state == Piece::State::kReading) ready = load.pieces[i].block;
    has_new |= state == Piece::State::kThere && load.pieces[i].block < ready;
  }
  if (!has_new) return;
  const TierModel& model = load.model->spec;
  NodeId at = index_.open_root(model.owner, model.fingerprint, load.cache_namespace);
  for (size_t b = 0; b < ready; ++b) {
    const NodeId child = add_node(load, at, index_.trie().find(at, tokens_of(load, b)), b);
    if (child == kNoNode) {
      cut(load, b);
      break;
    }
    index_.unpin(at);
    at = child;
  }
  index_.unpin(at);
}

// The node of a block, pinned, with what was loaded of it; kNoNode if it cannot be.
NodeId Tiering::add_node(Load& load, NodeId parent, NodeId known, size_t block) {
  const std::vector<PrefixOwner::Group>& groups = load.model->spec.groups;
  std::array<BlockId, kMaxGroups> blocks{kNoBlock, kNoBlock, kNoBlock, kNoBlock};
  size_t tier = 0;
  for (; load.next_piece < load.pieces.size() && load.pieces[load.next_piece].block == block; ++load.next_piece) {
    Piece& piece = load.pieces[load.next_piece];
    if (piece.state != Piece::State::kThere) continue;
    tier = piece.tier;
    const bool is_known = known != kNoNode && !index_.block(known, piece.group).is_none();
    if (is_known) {
      free_piece(piece);
      ++stats_.unused_blocks;
      continue;
    }
    pool_.seal(piece.dest);
    blocks[piece.group.value] = piece.dest;
    piece.state = Piece::State::kGone;
  }
  if (known == kNoNode) {
    bool is_whole = block >= load.first;
    for (size_t g = 0; g < groups.size(); ++g) {
      is_whole = is_whole && (groups[g].window_tokens > 0 || !blocks[g].is_none());
    }
    if (!is_whole) {
      for (const BlockId id : blocks) {
        if (!id.is_none()) pool_.unref(id);
      }
      return kNoNode;
    }
    const BlockTokens tokens = tokens_of(load, block);
    known = index_.add(index_.trie().key_of(parent, tokens), parent, tokens, std::span(blocks).first(groups.size()));
    index_.set_origin(known, tier);
  } else {
    for (uint32_t g = 0; g < groups.size(); ++g) {
      if (!blocks[g].is_none()) index_.attach(known, GroupId(g), blocks[g]);
    }
  }
  index_.pin(known);
  for (uint32_t g = 0; g < groups.size(); ++g) {
    if (blocks[g].is_none()) continue;
    if (groups[g].window_tokens > 0) index_.mark_replay(known, GroupId(g));
    index_.drop(known, GroupId(g));
  }
  return known;
}

}  // namespace pagoda::kv
