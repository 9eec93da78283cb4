#include "kv/cache.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "kv/sessions.h"
#include "kv/tiering.h"

namespace pagoda::kv {
namespace {

// The most blocks that `n_tokens` consecutive positions can touch, wherever they begin.
size_t most_blocks_touched(int64_t n_tokens) {
  return n_tokens <= 0 ? 0 : static_cast<size_t>((n_tokens + kBlockTokens - 2) / kBlockTokens + 1);
}

}  // namespace

Cache::Cache(BlockPool& pool, ModelId model, std::span<const GroupSpec> groups,
             const std::optional<PrefixConfig>& prefix)
    : pool_(pool), model_(model), prefix_(prefix.value_or(PrefixConfig{})), runs_(groups.size()) {
  CHECK(!groups.empty() && groups.size() <= kMaxGroups);
  for (const GroupSpec& spec : groups) {
    CHECK(spec.window_tokens >= 0);
    groups_.push_back({spec, pool.add_class(spec.block_bytes)});
    needs_.push_back({groups_.back().size_class, 0});
  }
  capacity_tokens_ = find_capacity();
  if (!prefix) return;
  CHECK(prefix_.index && prefix_.clock);
  PrefixOwner owner{.groups = {}, .cost_per_byte = prefix_.cost_per_byte};
  for (const Group& group : groups_) owner.groups.push_back({group.size_class, group.spec.window_tokens});
  const bool has_full = std::ranges::any_of(groups, [](const GroupSpec& spec) { return spec.window_tokens == 0; });
  for (const GroupSpec& spec : groups) reuse_bytes_ += !has_full || spec.window_tokens == 0 ? spec.block_bytes : 0;
  prefix_owner_ = prefix_.index->add_owner(std::move(owner));
  if (prefix_.tiering != nullptr) register_tiers();
  if (prefix_.sessions != nullptr) {
    SessionModel session_model{model_, prefix_owner_, prefix_.fingerprint, {}};
    for (const Group& group : groups_) session_model.groups.push_back({group.size_class, group.spec.window_tokens});
    prefix_.sessions->add_model(std::move(session_model));
  }
}

// The most blocks of a group that a sequence holds at once on its way to n_tokens, in chunks of at most max_chunk.
size_t Cache::peak_blocks(const GroupSpec& spec, int32_t n_tokens, int32_t max_chunk) const {
  const size_t all = blocks_for(n_tokens);
  if (spec.window_tokens == 0) return all;
  return std::min(all, most_blocks_touched(int64_t{spec.window_tokens} - 1 + max_chunk));
}

bool Cache::fits_alone(int32_t n_tokens) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    needs_[g].n_blocks = static_cast<uint32_t>(peak_blocks(groups_[g].spec, n_tokens, 1));
  }
  return pool_.could_hold(needs_);
}

int32_t Cache::find_capacity() const {
  int32_t low = 0, high = std::numeric_limits<int32_t>::max() - kBlockTokens;  // low fits
  if (fits_alone(high)) return high;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (fits_alone(middle) ? low : high) = middle;
  }
  return low;
}

Admission Cache::admit(KvLease& lease, std::span<const TokenId> token_ids, int32_t n_new, std::vector<BlockOp>& ops) {
  CHECK(lease.model() == model_ && n_new > 0);
  const auto n_known = static_cast<int32_t>(token_ids.size());
  CHECK(n_known > lease.n_written());
  DCHECK(std::equal(lease.token_ids_.begin(), lease.token_ids_.end(), token_ids.begin()));
  if (lease.tables_.empty()) lease.tables_.resize(groups_.size());
  const int32_t n_before = lease.n_committed_;
  const bool was_empty = lease.n_written() == 0;
  Match found{.miss = MissReason::kOff, .divergence = {}, .wait_for = {}};
  if (has_prefixes()) {
    open_root(lease, token_ids.size());
    found = match(lease, token_ids);
    take_hits(lease, found, token_ids);
    if (found.wait_for) {
      if (lease.n_written() == 0) release(lease, LeaseEnd::kUndo);
      return WaitOn{*found.wait_for, prefix_.clock->now_us() + prefix_.flight_wait_us, WaitOn::For::kRows};
    }
    hold_donor(found.donor);  // all hits first, then what is new: it must not be evicted to make room for its own copy
    if (prefix_.tiering != nullptr) {
      if (const std::optional<WaitOn> load = load_more(lease, token_ids, found.miss)) {
        drop_donor(found.donor);
        if (lease.n_written() == 0) release(lease, LeaseEnd::kUndo);
        return *load;
      }
    }
  }
  const auto end = [&] { return std::min(lease.n_written() + found.n_copied + n_new, n_known); };
  bool has_room = make_room(lease, end());
  if (!has_room && found.donor != kNoNode) {
    drop_donor(std::exchange(found.donor, kNoNode));
    found.n_copied = 0;
    found.miss = MissReason::kNoRoom;
    found.divergence = {};
    has_room = make_room(lease, end());
  }
  if (!has_room) {
    const size_t bytes = pool_.missing_bytes_without_cached(needs_);
    if (was_empty) release(lease, LeaseEnd::kUndo);
    return NoSpace{bytes};
  }
  const int32_t n_written = end();
  open_blocks(lease, n_written, found, ops);
  // A few tokens in common, as those that begin every prompt, are no reason to keep a block.
  if (found.n_copied * 2 >= kBlockTokens) prefix_.index->hit(found.donor);
  drop_donor(found.donor);
  lease.token_ids_.insert(lease.token_ids_.end(), token_ids.begin() + lease.n_written(), token_ids.begin() + n_written);
  lease.n_committed_ += found.n_copied;
  const Granted granted{lease.n_committed_ - n_before, found.n_copied, found.miss, found.divergence};
  if (!has_prefixes()) return granted;
  if (granted.reused_tokens > 0) mark_replay(lease, lease.path_.size(), 0);
  if (found.n_copied > 0) drop_outside_window(lease);
  open_flight(lease, token_ids);
  return granted;
}

// Room for the blocks that the lease still lacks to hold n_tokens; needs_ says how many.
bool Cache::make_room(const KvLease& lease, int32_t n_tokens) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    needs_[g].n_blocks = static_cast<uint32_t>(blocks_for(n_tokens) - lease.tables_[g].blocks.size());
  }
  return has_prefixes() ? prefix_.index->make_room(needs_) : pool_.missing_bytes(needs_) == 0;
}

// The first new block of every group begins as the donor's copy, if there is one.
void Cache::open_blocks(KvLease& lease, int32_t n_tokens, const Match& match, std::vector<BlockOp>& ops) {
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId>& blocks = lease.tables_[g].blocks;
    bool is_copy = match.donor != kNoNode;
    while (blocks.size() < blocks_for(n_tokens)) {
      const std::optional<BlockId> block = pool_.allocate(groups_[g].size_class);
      CHECK(block);  // make_room() said so
      blocks.push_back(*block);
      BlockOp op{.kind = BlockOpKind::kZero, .group = GroupId(g), .block = *block};
      if (std::exchange(is_copy, false)) {
        op.kind = BlockOpKind::kCopy;
        op.source = prefix_.index->block(match.donor, GroupId(g));
        op.n_tokens = match.n_copied;
      }
      ops.push_back(op);
    }
  }
}

bool Cache::has_room(const KvLease& lease, std::span<const TokenId> token_ids, int32_t max_chunk,
                     uint32_t spare) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t held = lease.tables_.empty() ? 0 : lease.tables_[g].n_held();
    const size_t peak = peak_blocks(groups_[g].spec, static_cast<int32_t>(token_ids.size()), max_chunk);
    needs_[g].n_blocks = static_cast<uint32_t>(std::max(peak, held) - held) + spare;
  }
  if (pool_.missing_bytes_without_cached(needs_) == 0) return true;
  // What others hold for themselves costs nothing; a cached block is one of those that could go, so it costs what a new one does.
  const uint32_t n_shared = has_prefixes() ? count_held_hits(lease, token_ids) : 0;
  if (n_shared == 0) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].spec.window_tokens == 0) needs_[g].n_blocks -= std::min(needs_[g].n_blocks, n_shared);
  }
  return pool_.missing_bytes_without_cached(needs_) == 0;
}

void Cache::commit(KvLease& lease, int32_t n) {
  CHECK(n >= 0 && n <= lease.n_written() - lease.n_committed_);
  const size_t sealed_before = static_cast<size_t>(lease.n_committed_ / kBlockTokens);
  lease.n_committed_ += n;
  const size_t sealed = static_cast<size_t>(lease.n_committed_ / kBlockTokens);
  for (size_t b = sealed_before; b < sealed; ++b) {
    for (const BlockTable& table : lease.tables_) pool_.seal(table.blocks[b]);
    if (has_prefixes()) register_block(lease, b);
    if (prefix_.tiering != nullptr) store_block(lease, b);
  }
  if (has_prefixes() && sealed > sealed_before) {
    close_flight(lease);
    mark_prompt_replays(lease, sealed_before);
  }
  drop_outside_window(lease);
  if (has_prefixes()) pass_dropped(lease);
}

void Cache::return_block(const KvLease& lease, uint32_t group, size_t block) {
  const BlockId id = lease.tables_[group].blocks[block];
  if (id.is_none()) return;
  if (block < lease.path_.size()) {
    prefix_.index->drop(lease.path_[block], GroupId(group));
  } else {
    pool_.unref(id);
  }
}

// What the next query, at position n_committed, does not see goes.
void Cache::drop_outside_window(KvLease& lease) {
  for (uint32_t g = 0; g < lease.tables_.size(); ++g) {
    BlockTable& table = lease.tables_[g];
    const size_t n_dropped = blocks_out_of_window(groups_[g].spec.window_tokens, lease.n_committed_);
    for (; table.n_dropped < n_dropped; ++table.n_dropped) {
      return_block(lease, g, table.n_dropped);
      table.blocks[table.n_dropped] = kNoBlock;
    }
  }
}

void Cache::rollback(KvLease& lease, int32_t n) {
  CHECK(n >= 0 && n <= lease.n_written() - lease.n_committed_);
  lease.token_ids_.resize(lease.token_ids_.size() - static_cast<size_t>(n));
  const size_t n_blocks = blocks_for(lease.n_written());
  for (BlockTable& table : lease.tables_) {
    for (; table.blocks.size() > n_blocks; table.blocks.pop_back()) pool_.unref(table.blocks.back());
  }
}

void Cache::release(KvLease& lease, LeaseEnd end) {
  CHECK(lease.model() == model_);
  if (lease.root_ != kNoNode) {
    if (prefix_.reuse != nullptr) count_use(lease);
    close_flight(lease);
    mark_replay(lease, lease.path_.size(), 0);  // the end of a turn
    if (prefix_.tiering != nullptr) store_again(lease);
    const bool is_kept = end != LeaseEnd::kUndo && lease.session != SessionId();
    if (prefix_.sessions != nullptr && is_kept) keep_session(lease, end);
  }
  for (uint32_t g = 0; g < lease.tables_.size(); ++g) {
    BlockTable& table = lease.tables_[g];
    for (size_t b = table.n_dropped; b < table.blocks.size(); ++b) return_block(lease, g, b);
    table.blocks.clear();
    table.n_dropped = table.n_passed = 0;
  }
  if (lease.root_ != kNoNode) prefix_.index->unpin(end_of(lease));
  lease.root_ = kNoNode;
  lease.path_.clear();
  lease.token_ids_.clear();
  lease.tiers_.keys.clear();
  if (lease.n_committed_ > 0) lease.tiers_ = {};
  lease.n_committed_ = lease.n_prompt_ = 0;
}

// The committed tokens go with it: the lease is done with them.
void Cache::keep_session(KvLease& lease, LeaseEnd end) {
  lease.token_ids_.resize(static_cast<size_t>(lease.n_committed_));
  prefix_.sessions->take({.session = lease.session,
                          .model = model_,
                          .token_ids = std::exchange(lease.token_ids_, {}),
                          .path = lease.path_,
                          .copies = lease.tiers_.copies,
                          .end = end});
}

void Cache::take_completed(std::vector<TicketId>& tickets) {
  if (has_prefixes()) prefix_.index->in_flight().take_completed(tickets);
  if (prefix_.tiering != nullptr) prefix_.tiering->take_completed(tickets);
}

Status Cache::check_lease(const KvLease& lease) const {
  if (lease.n_committed_ > lease.n_written()) {
    return fail(ErrorCode::kInternal, "{} tokens committed of {} written", lease.n_committed_, lease.n_written());
  }
  for (size_t g = 0; g < lease.tables_.size(); ++g) {
    const BlockTable& table = lease.tables_[g];
    if (table.blocks.size() != blocks_for(lease.n_written())) {
      return fail(ErrorCode::kInternal, "group {}: {} entries for {} tokens", g, table.blocks.size(),
                  lease.n_written());
    }
    for (size_t b = 0; b < table.blocks.size(); ++b) {
      if ((b < table.n_dropped) != table.blocks[b].is_none()) {
        return fail(ErrorCode::kInternal, "group {}: entry {} with {} dropped", g, b, table.n_dropped);
      }
      if (b < table.n_dropped) continue;
      if (pool_.class_of(table.blocks[b]) != groups_[g].size_class) {
        return fail(ErrorCode::kInternal, "group {}: entry {} is of another class", g, b);
      }
      const bool full = (b + 1) * kBlockTokens <= static_cast<size_t>(lease.n_committed_);
      if (pool_.state(table.blocks[b]) != (full ? BlockState::kSealed : BlockState::kOpen)) {
        return fail(ErrorCode::kInternal, "group {}: entry {} sealed too early or too late", g, b);
      }
    }
  }
  return {};
}

Status Cache::check_integrity(std::span<const KvLease* const> leases) const {
  TRY(pool_.check_integrity());
  std::vector<uint32_t> n_blocks(groups_.size());
  std::unordered_map<uint32_t, uint32_t> refs;
  for (const KvLease* lease : leases) {
    if (lease->model() != model_) return fail(ErrorCode::kInternal, "a lease of another model");
    TRY(check_lease(*lease));
    if (has_prefixes()) TRY(check_path(*lease));
    for (size_t g = 0; g < lease->tables_.size(); ++g) {
      const BlockTable& table = lease->tables_[g];
      for (size_t b = table.n_dropped; b < table.blocks.size(); ++b) {
        if (++refs[table.blocks[b].value] == 1) ++n_blocks[g];
      }
    }
  }
  if (has_prefixes()) TRY(check_holders(leases));
  if (prefix_.tiering != nullptr) {
    TRY(prefix_.tiering->check_integrity());
    prefix_.tiering->for_each_block(model_, [&](GroupId group, BlockId block) {
      ++refs[block.value];
      ++n_blocks[group.value];
    });
  }
  for (const auto& [block, count] : refs) {
    if (pool_.refs(BlockId{block}) != count) {
      return fail(ErrorCode::kInternal, "block {}: {} holders, {} counted", block, count, pool_.refs(BlockId{block}));
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (pool_.live_blocks(groups_[g].size_class) != n_blocks[g]) {
      return fail(ErrorCode::kInternal, "group {}: {} blocks in tables, {} live in the pool", g, n_blocks[g],
                  pool_.live_blocks(groups_[g].size_class));
    }
  }
  return {};
}

}  // namespace pagoda::kv
