// Cache, the sharing half: what an admission takes over, and what a commit leaves for others.
#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "kv/cache.h"

namespace pagoda::kv {
namespace {

constexpr int32_t kReplayTokens = 1024;  // prompt tokens from one replay point to the next

BlockTokens block_tokens(std::span<const TokenId> tokens, size_t block) {
  return tokens.subspan(block * kBlockTokens).first<kBlockTokens>();
}

}  // namespace

void Cache::open_root(KvLease& lease, size_t n_known) {
  if (lease.root_ != kNoNode) return;
  lease.root_ = prefix_.index->open_root(prefix_owner_, prefix_.fingerprint, lease.namespace_);
  lease.n_prompt_ = static_cast<int32_t>(n_known);
}

// Only at a block's boundary: what is written into an open block is this lease's own.
Cache::Match Cache::match(KvLease& lease, std::span<const TokenId> token_ids) {
  Match match;
  found_.clear();
  keys_.clear();
  if (lease.n_written() != lease.n_committed_ || lease.n_committed_ % kBlockTokens != 0) return match;
  if (lease.reuse != PrefixReuse::kMatch) {
    match.miss = lease.reuse == PrefixReuse::kNone ? MissReason::kOptedOut : MissReason::kNoRoom;
    return match;
  }
  const std::span<const TokenId> rest = token_ids.subspan(static_cast<size_t>(lease.n_committed_));
  if (rest.size() <= 1) return match;
  if (prefix_.reuse != nullptr && !lease.is_counted_) count_lookup(lease, token_ids);
  const NodeId at = walk(lease, rest, match);
  if (match.n_blocks < found_.size()) {
    found_.resize(match.n_blocks);
    match.miss = MissReason::kWindow;
  } else {
    match_next_block(lease, at, rest, match);
  }
  return match;
}

// Of an empty lease: its prompt's whole blocks, all but the last token, as the cache stands before it; then they are in use.
void Cache::count_lookup(KvLease& lease, std::span<const TokenId> token_ids) {
  lease.is_counted_ = true;
  if (lease.n_committed_ > 0) return;
  const PrefixTrie& trie = prefix_.index->trie();
  sampled_.clear();
  Hash128 key = trie.node(lease.root_).key;
  for (size_t b = 0; (b + 1) * kBlockTokens < token_ids.size(); ++b) {
    key = trie.key_of(key, block_tokens(token_ids, b));
    keys_.push_back(key);
    prefix_.reuse->look_up(key, reuse_bytes_);
    if (prefix_.reuse->is_sampled(key)) sampled_.push_back(key);
  }
  while (!sampled_.empty()) {
    prefix_.reuse->use(sampled_.back(), reuse_bytes_);
    sampled_.pop_back();
  }
}

// A lease that ends has used its blocks until now.
void Cache::count_use(const KvLease& lease) {
  for (size_t b = lease.path_.size(); b-- > 0;) {
    prefix_.reuse->use(prefix_.index->trie().node(lease.path_[b]).key, reuse_bytes_);
  }
}

// Whole blocks, all but the last token of `rest` at most, into found_; match.n_blocks of them can be used: the windows that the token
// behind them would see are there. Returns the last node.
NodeId Cache::walk(const KvLease& lease, std::span<const TokenId> rest, Match& match) {
  const PrefixIndex& index = *prefix_.index;
  NodeId at = end_of(lease);
  for (uint32_t g = 0; g < groups_.size(); ++g) runs_[g] = cached_run(lease, g);
  const size_t most = (rest.size() - 1) / kBlockTokens;
  while (found_.size() < most) {
    const BlockTokens tokens = block_tokens(rest, found_.size());
    const NodeId child = found_.size() < keys_.size() ? index.trie().find(keys_[found_.size()], at, tokens)
                                                      : index.trie().find(at, tokens);
    if (child == kNoNode) break;
    found_.push_back(child);
    at = child;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      runs_[g] = index.block(child, GroupId(g)).is_none() ? 0 : runs_[g] + 1;
    }
    const int32_t n_tokens = lease.n_committed_ + static_cast<int32_t>(found_.size()) * kBlockTokens;
    if (window_is_cached(n_tokens)) match.n_blocks = found_.size();
  }
  return at;
}

// Behind the whole blocks: another lease that computes the next one, or a child that shares its beginning.
void Cache::match_next_block(const KvLease& lease, NodeId at, std::span<const TokenId> rest, Match& match) {
  const PrefixIndex& index = *prefix_.index;
  const std::span<const TokenId> tail = rest.subspan(found_.size() * kBlockTokens);
  const size_t n_reusable = std::min<size_t>(tail.size() - 1, kBlockTokens - 1);
  const PrefixTrie::PartialHit partial = index.trie().find_partial(at, tail.first(n_reusable));
  if (partial.n_common > 0 && has_all_blocks(partial.child)) {
    match.donor = partial.child;
    match.n_copied = partial.n_common;
  }
  if (static_cast<size_t>(match.n_copied) + 1 == tail.size()) return;
  if (match.n_copied < partial.n_common) {
    match.miss = MissReason::kWindow;
  } else {
    match.miss = MissReason::kCold;
    const auto n_known = static_cast<int32_t>(lease.path_.size() + found_.size()) * kBlockTokens;
    match.divergence = {n_known + partial.n_common, token_below(at, partial)};
  }
  if (tail.size() < kBlockTokens) return;
  const BlockTokens tokens = tail.first<kBlockTokens>();
  const Hash128 key = index.trie().key_of(at, tokens);
  if (index.was_evicted(key)) match.miss = MissReason::kEvicted;
  if (at == lease.root_ && match.miss == MissReason::kCold && is_open(lease, tokens))
    match.miss = MissReason::kNamespace;
  if (lease.flight_ == key) return;
  const std::optional<TicketId> ticket = index.in_flight().find(key, at, tokens);
  if (ticket && lease.patience == Patience::kNever) match.miss = MissReason::kLate;
  if (!ticket || lease.patience == Patience::kNever) return;
  match.wait_for = ticket;
  match.donor = kNoNode;
}

// What stands below `parent`, behind the tokens in common.
std::optional<TokenId> Cache::token_below(NodeId parent, const PrefixTrie::PartialHit& hit) const {
  const PrefixTrie& trie = prefix_.index->trie();
  const NodeId child = hit.child != kNoNode ? hit.child : trie.node(parent).first_child;
  if (child == kNoNode) return std::nullopt;
  return trie.node(child).tokens[static_cast<size_t>(hit.n_common)];
}

// Whether the open namespace, which is not the lease's own, has this first block.
bool Cache::is_open(const KvLease& lease, BlockTokens tokens) const {
  if (lease.open_namespace == lease.namespace_) return false;
  const NodeId root = prefix_.index->find_root(prefix_owner_, prefix_.fingerprint, lease.open_namespace);
  return root != kNoNode && prefix_.index->trie().find(root, tokens) != kNoNode;
}

// Blocks of a window group, one behind the other, that end with the lease's path; not counted further than its window.
size_t Cache::cached_run(const KvLease& lease, uint32_t group) const {
  const int32_t window = groups_[group].spec.window_tokens;
  const size_t most = window == 0 ? 0 : blocks_for(window) + 1;
  size_t run = 0;
  while (run < std::min(most, lease.path_.size()) &&
         !prefix_.index->block(lease.path_[lease.path_.size() - 1 - run], GroupId(group)).is_none()) {
    ++run;
  }
  return run;
}

bool Cache::window_is_cached(int32_t n_tokens) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int32_t window = groups_[g].spec.window_tokens;
    if (window > 0 && runs_[g] < blocks_for(n_tokens) - blocks_out_of_window(window, n_tokens)) return false;
  }
  return true;
}

bool Cache::has_all_blocks(NodeId id) const {
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    if (prefix_.index->block(id, GroupId(g)).is_none()) return false;
  }
  return true;
}

int32_t Cache::match_tokens(const CacheNamespace& cache_namespace, std::span<const TokenId> token_ids) const {
  if (!has_prefixes()) return 0;
  const PrefixIndex& index = *prefix_.index;
  NodeId at = index.find_root(prefix_owner_, prefix_.fingerprint, cache_namespace);
  size_t n_blocks = 0;
  for (; at != kNoNode && (n_blocks + 1) * kBlockTokens < token_ids.size(); ++n_blocks) {
    const BlockTokens tokens = block_tokens(token_ids, n_blocks);
    at = index.trie().find(at, tokens);
    if (at == kNoNode) break;
  }
  return static_cast<int32_t>(n_blocks) * kBlockTokens;
}

// Whole blocks behind the lease's own that others hold already.
uint32_t Cache::count_held_hits(const KvLease& lease, std::span<const TokenId> token_ids) const {
  if (lease.reuse != PrefixReuse::kMatch) return 0;
  const PrefixIndex& index = *prefix_.index;
  NodeId at =
      lease.root_ != kNoNode ? end_of(lease) : index.find_root(prefix_owner_, prefix_.fingerprint, lease.namespace_);
  uint32_t n_held = 0;
  for (size_t b = lease.path_.size(); at != kNoNode && (b + 1) * kBlockTokens < token_ids.size(); ++b) {
    const BlockTokens tokens = block_tokens(token_ids, b);
    at = index.trie().find(at, tokens);
    if (at == kNoNode) break;
    const std::span<const BlockId> blocks(index.trie().node(at).blocks);
    if (std::ranges::all_of(blocks,
                            [&](BlockId id) { return id.is_none() || pool_.state(id) == BlockState::kCached; })) {
      break;
    }
    ++n_held;
  }
  return n_held;
}

void Cache::take_hits(KvLease& lease, const Match& match, std::span<const TokenId> token_ids) {
  if (match.n_blocks == 0) return;
  PrefixIndex& index = *prefix_.index;
  const size_t n_before = lease.path_.size();
  const int32_t n_tokens = lease.n_committed_ + static_cast<int32_t>(match.n_blocks) * kBlockTokens;
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const size_t first = blocks_out_of_window(groups_[g].spec.window_tokens, n_tokens);
    for (size_t i = 0; i < match.n_blocks; ++i) {
      const bool is_seen = n_before + i >= first;
      if (is_seen) index.hold(found_[i], GroupId(g));
      lease.tables_[g].blocks.push_back(is_seen ? index.block(found_[i], GroupId(g)) : kNoBlock);
    }
  }
  if (prefix_.tiering != nullptr) count_restored(lease);
  for (const NodeId id : found_) {
    index.hit(id);
    step_to(lease, id);
  }
  lease.token_ids_.insert(lease.token_ids_.end(), token_ids.begin() + lease.n_written(), token_ids.begin() + n_tokens);
  lease.n_committed_ = n_tokens;
  drop_outside_window(lease);
  // Those it never held are not its to give up.
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    BlockTable& table = lease.tables_[g];
    for (; table.n_passed < std::min(n_before, table.n_dropped); ++table.n_passed) {
      index.pass(lease.path_[table.n_passed], GroupId(g));
    }
    table.n_passed = table.n_dropped;
  }
}

void Cache::hold_donor(NodeId donor) {
  if (donor == kNoNode) return;
  prefix_.index->pin(donor);
  for (uint32_t g = 0; g < groups_.size(); ++g) prefix_.index->hold(donor, GroupId(g));
}

void Cache::drop_donor(NodeId donor) {
  if (donor == kNoNode) return;
  for (uint32_t g = 0; g < groups_.size(); ++g) prefix_.index->drop(donor, GroupId(g));
  prefix_.index->unpin(donor);
}

// The lease's path grows by one node.
void Cache::step_to(KvLease& lease, NodeId child) {
  prefix_.index->pin(child);
  prefix_.index->unpin(end_of(lease));
  lease.path_.push_back(child);
}

// Where another lease was first with the same tokens, its block is taken and this one's freed: they hold the same bits.
void Cache::register_block(KvLease& lease, size_t block) {
  PrefixIndex& index = *prefix_.index;
  const NodeId parent = end_of(lease);
  const BlockTokens tokens = block_tokens(lease.token_ids_, block);
  const Hash128 key = index.trie().key_of(parent, tokens);
  const NodeId known = index.trie().find(key, parent, tokens);
  if (known == kNoNode) {
    std::array<BlockId, kMaxGroups> blocks;
    for (size_t g = 0; g < groups_.size(); ++g) blocks[g] = lease.tables_[g].blocks[block];
    const bool is_branch = index.trie().node(parent).n_children > 0;
    const NodeId added = index.add(key, parent, tokens, std::span(blocks).first(groups_.size()));
    if (is_branch) mark_replay(lease, block, 0);
    return step_to(lease, added);
  }
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    BlockId& own = lease.tables_[g].blocks[block];
    if (index.block(known, GroupId(g)).is_none()) {
      index.attach(known, GroupId(g), own);
      continue;
    }
    index.hold(known, GroupId(g));
    pool_.unref(own);
    own = index.block(known, GroupId(g));
  }
  index.hit(known);
  step_to(lease, known);
}

// Announces the next block that the lease's known tokens will fill.
void Cache::open_flight(KvLease& lease, std::span<const TokenId> token_ids) {
  const size_t block = lease.path_.size();
  if (lease.flight_ || token_ids.size() < (block + 1) * kBlockTokens) return;
  PrefixIndex& index = *prefix_.index;
  const BlockTokens tokens = block_tokens(token_ids, block);
  const Hash128 key = index.trie().key_of(end_of(lease), tokens);
  if (index.in_flight().open(key, end_of(lease), tokens) != TicketId()) lease.flight_ = key;
}

void Cache::close_flight(KvLease& lease) {
  if (!lease.flight_) return;
  prefix_.index->in_flight().close(*lease.flight_);
  lease.flight_.reset();
}

// The windows that a token at 32 n_blocks would see, and n_extra blocks more, stay for a later hit there.
void Cache::mark_replay(KvLease& lease, size_t n_blocks, size_t n_extra) {
  const auto n_tokens = static_cast<int32_t>(n_blocks) * kBlockTokens;
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    const int32_t window = groups_[g].spec.window_tokens;
    if (window == 0) continue;
    const size_t first = blocks_out_of_window(window, n_tokens);
    for (size_t b = first - std::min(first, n_extra); b < n_blocks; ++b) {
      const bool is_new = !prefix_.index->is_replay(lease.path_[b], GroupId(g));
      prefix_.index->mark_replay(lease.path_[b], GroupId(g));
      if (prefix_.tiering != nullptr && is_new) store_block(lease, b, GroupId(g));
    }
  }
}

void Cache::mark_prompt_replays(KvLease& lease, size_t n_before) {
  const auto n_prompt = static_cast<size_t>(lease.n_prompt_ / kBlockTokens);
  for (size_t n = n_before + 1; n <= std::min(n_prompt, lease.path_.size()); ++n) {
    if (n == n_prompt || n % (kReplayTokens / kBlockTokens) == 0) mark_replay(lease, n, 1);
  }
}

// A dropped block is still seen from the last boundary, where a later hit would stand, until the next one.
void Cache::pass_dropped(KvLease& lease) {
  const auto boundary = static_cast<int32_t>(lease.path_.size()) * kBlockTokens;
  for (uint32_t g = 0; g < lease.tables_.size(); ++g) {
    BlockTable& table = lease.tables_[g];
    const size_t n_passed = blocks_out_of_window(groups_[g].spec.window_tokens, boundary);
    for (; table.n_passed < n_passed; ++table.n_passed) {
      prefix_.index->pass(lease.path_[table.n_passed], GroupId(g));
    }
  }
}

Status Cache::check_path(const KvLease& lease) const {
  const PrefixIndex& index = *prefix_.index;
  if (lease.root_ == kNoNode) {
    if (lease.n_written() == 0 && lease.path_.empty() && !lease.flight_) return {};
    return fail(ErrorCode::kInternal, "a lease of {} tokens without a root", lease.n_written());
  }
  if (lease.path_.size() != static_cast<size_t>(lease.n_committed_ / kBlockTokens)) {
    return fail(ErrorCode::kInternal, "a path of {} for {} tokens", lease.path_.size(), lease.n_committed_);
  }
  NodeId parent = lease.root_;
  for (size_t b = 0; b < lease.path_.size(); ++b) {
    const PrefixNode& node = index.trie().node(lease.path_[b]);
    if (node.parent != parent || !std::ranges::equal(node.tokens, block_tokens(lease.token_ids_, b))) {
      return fail(ErrorCode::kInternal, "block {} of a lease is another's node", b);
    }
    for (size_t g = 0; g < lease.tables_.size(); ++g) {
      const BlockId block = lease.tables_[g].blocks[b];
      if (!block.is_none() && block != node.blocks[g]) {
        return fail(ErrorCode::kInternal, "block {} of a lease is not its node's in group {}", b, g);
      }
    }
    parent = lease.path_[b];
  }
  return {};
}

Status Cache::check_holders(std::span<const KvLease* const> leases) const {
  const PrefixIndex& index = *prefix_.index;
  TRY(index.check_integrity());
  std::unordered_map<uint32_t, uint32_t> holders;
  for (const KvLease* lease : leases) {
    if (lease->root_ != kNoNode) ++holders[end_of(*lease).value];
  }
  Status status;
  index.trie().for_each([&](NodeId id) {
    const PrefixNode& node = index.trie().node(id);
    const auto at = holders.find(id.value);
    const uint32_t n_holders = at == holders.end() ? 0 : at->second;
    if (!status || node.owner != prefix_owner_ || node.n_holders == n_holders) return;
    status = fail(ErrorCode::kInternal, "node {}: {} holders of {}", id.value, node.n_holders, n_holders);
  });
  return status;
}

}  // namespace pagoda::kv
