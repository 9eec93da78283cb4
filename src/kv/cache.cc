#include "kv/cache.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/check.h"

namespace pagoda::kv {
namespace {

// The most blocks that `n_tokens` consecutive positions can touch, wherever they begin.
size_t most_blocks_touched(int64_t n_tokens) {
  return n_tokens <= 0 ? 0 : static_cast<size_t>((n_tokens + kBlockTokens - 2) / kBlockTokens + 1);
}

}  // namespace

Cache::Cache(BlockPool& pool, ModelId model, std::span<const GroupSpec> groups) : pool_(pool), model_(model) {
  CHECK(!groups.empty());
  for (const GroupSpec& spec : groups) {
    CHECK(spec.window_tokens >= 0);
    groups_.push_back({spec, pool.add_class(spec.block_bytes)});
    needs_.push_back({groups_.back().size_class, 0});
  }
  capacity_tokens_ = find_capacity();
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
  const int32_t n_written = lease.n_written() + n_new;
  CHECK(token_ids.size() >= static_cast<size_t>(n_written));
  DCHECK(std::equal(lease.token_ids_.begin(), lease.token_ids_.end(), token_ids.begin()));
  if (lease.tables_.empty()) lease.tables_.resize(groups_.size());
  const size_t n_blocks = blocks_for(n_written);
  for (size_t g = 0; g < groups_.size(); ++g) {
    needs_[g].n_blocks = static_cast<uint32_t>(n_blocks - lease.tables_[g].blocks.size());
  }
  if (const size_t bytes = pool_.missing_bytes(needs_); bytes > 0) return NoSpace{bytes};
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId>& blocks = lease.tables_[g].blocks;
    while (blocks.size() < n_blocks) {
      const std::optional<BlockId> block = pool_.allocate(groups_[g].size_class);
      CHECK(block);  // missing_bytes() said so
      blocks.push_back(*block);
      ops.push_back({.kind = BlockOpKind::kZero, .group = GroupId(g), .block = *block});
    }
  }
  lease.token_ids_.insert(lease.token_ids_.end(), token_ids.begin() + lease.n_written(), token_ids.begin() + n_written);
  return Granted{};
}

bool Cache::has_room(const KvLease& lease, int32_t n_tokens, int32_t max_chunk, uint32_t spare) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t held = lease.tables_.empty() ? 0 : lease.tables_[g].n_held();
    const size_t peak = peak_blocks(groups_[g].spec, n_tokens, max_chunk);
    needs_[g].n_blocks = static_cast<uint32_t>(std::max(peak, held) - held) + spare;
  }
  return pool_.missing_bytes(needs_) == 0;
}

void Cache::commit(KvLease& lease, int32_t n) {
  CHECK(n >= 0 && n <= lease.n_written() - lease.n_committed_);
  const size_t sealed_before = static_cast<size_t>(lease.n_committed_ / kBlockTokens);
  lease.n_committed_ += n;
  const size_t sealed = static_cast<size_t>(lease.n_committed_ / kBlockTokens);
  for (size_t g = 0; g < lease.tables_.size(); ++g) {
    BlockTable& table = lease.tables_[g];
    for (size_t b = sealed_before; b < sealed; ++b) pool_.seal(table.blocks[b]);
    drop_outside_window(groups_[g], table, lease.n_committed_);
  }
}

// The next query, at position n_committed, sees tokens t > n_committed - window: a block whose last token is not among them goes.
void Cache::drop_outside_window(const Group& group, BlockTable& table, int32_t n_committed) {
  const int32_t window = group.spec.window_tokens;
  if (window == 0 || n_committed < window) return;
  // Last token 32 b + 31 <= n_committed - window  <=>  b < (n_committed - window + 1) / 32.
  const size_t n_dropped = static_cast<size_t>((n_committed - window + 1) / kBlockTokens);
  for (; table.n_dropped < n_dropped; ++table.n_dropped) {
    pool_.unref(table.blocks[table.n_dropped]);
    table.blocks[table.n_dropped] = kNoBlock;
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

void Cache::release(KvLease& lease) {
  CHECK(lease.model() == model_);
  for (BlockTable& table : lease.tables_) {
    for (size_t b = table.n_dropped; b < table.blocks.size(); ++b) pool_.unref(table.blocks[b]);
    table.blocks.clear();
    table.n_dropped = 0;
  }
  lease.token_ids_.clear();
  lease.n_committed_ = 0;
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
    for (size_t g = 0; g < lease->tables_.size(); ++g) {
      const BlockTable& table = lease->tables_[g];
      for (size_t b = table.n_dropped; b < table.blocks.size(); ++b) {
        if (++refs[table.blocks[b].value] == 1) ++n_blocks[g];
      }
    }
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
