// Cache, the tiers' half: what a lease stores, and what it waits for because a tier has it.
#include <algorithm>

#include "kv/cache.h"
#include "kv/tiering.h"

namespace pagoda::kv {
namespace {

MissReason reason_of(TierMiss miss, MissReason otherwise) {
  switch (miss) {
    case TierMiss::kSlow:
      return MissReason::kLoadSlow;
    case TierMiss::kCorrupt:
      return MissReason::kChecksum;
    case TierMiss::kAbsent:
    case TierMiss::kNoRoom:
      return otherwise;
  }
  return otherwise;
}

}  // namespace

void Cache::register_tiers() {
  TierModel model{.model = model_, .owner = prefix_owner_, .fingerprint = prefix_.fingerprint, .groups = {}};
  for (const Group& group : groups_) model.groups.push_back({group.size_class, group.spec.window_tokens});
  prefix_.tiering->add_model(std::move(model));
}

// Of the namespace's root and of all sealed blocks. Nothing as long as the tiers do not know the model.
std::span<const TierKey> Cache::tier_keys(KvLease& lease) const {
  std::vector<TierKey>& keys = lease.tiers_.keys;
  if (!prefix_.tiering->is_ready(model_)) return {};
  if (keys.empty()) keys.push_back(prefix_.tiering->root_key(model_, lease.namespace_));
  while (keys.size() <= lease.path_.size()) {
    const std::span<const TokenId> tokens(lease.token_ids_);
    keys.push_back(tier_key(keys.back(), tokens.subspan((keys.size() - 1) * kBlockTokens).first<kBlockTokens>()));
  }
  return keys;
}

// A sealed block goes to the tiers: those of full groups all, those of windows where they serve a replay point.
void Cache::store_block(KvLease& lease, size_t block) {
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].spec.window_tokens == 0) store_block(lease, block, GroupId(g));
  }
}

void Cache::store_block(KvLease& lease, size_t block, GroupId group) {
  const BlockId id = prefix_.index->block(lease.path_[block], group);
  const std::span<const TierKey> keys = id.is_none() ? std::span<const TierKey>() : tier_keys(lease);
  if (!keys.empty()) prefix_.tiering->store(model_, {keys[block + 1], group}, id);
}

// What RAM uses often no tier sees being used: a lease that ends sees to it that they still have its blocks.
void Cache::store_again(KvLease& lease) {
  const std::span<const TierKey> keys = lease.path_.empty() ? std::span<const TierKey>() : tier_keys(lease);
  lease.tiers_.copies = keys.empty() ? TierCopies::kSome : TierCopies::kAll;
  for (size_t b = 0; b + 1 < keys.size(); ++b) {
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      const BlockId id = prefix_.index->block(lease.path_[b], GroupId(g));
      const bool is_wanted = groups_[g].spec.window_tokens == 0 || prefix_.index->is_replay(lease.path_[b], GroupId(g));
      if (id.is_none() || !is_wanted) continue;
      if (!prefix_.tiering->store_again(model_, {keys[b + 1], GroupId(g)}, id)) lease.tiers_.copies = TierCopies::kSome;
    }
  }
  prefix_.tiering->ask_again();
}

// Behind the hits that the lease has just taken over. Once a load brought it nothing, or its deadline passed, it computes.
std::optional<WaitOn> Cache::load_more(KvLease& lease, std::span<const TokenId> token_ids, MissReason& miss) {
  const bool is_at_boundary = lease.n_written() == lease.n_committed_ && lease.n_committed_ % kBlockTokens == 0;
  const size_t n_held = lease.path_.size();
  if (!is_at_boundary || lease.reuse != PrefixReuse::kMatch || (token_ids.size() - 1) / kBlockTokens <= n_held) {
    return std::nullopt;
  }
  LeaseTiers& tiers = lease.tiers_;
  if (lease.patience == Patience::kNever) {
    if (tiers.load_from) miss = MissReason::kLoadSlow;
    return std::nullopt;
  }
  const std::span<const TierKey> keys = tier_keys(lease);
  if (keys.empty()) return std::nullopt;
  const bool is_stuck = tiers.load_from == n_held;
  tiers.was_stuck |= is_stuck;
  const TierLookup wanted{.model = model_,
                          .cache_namespace = lease.namespace_,
                          .token_ids = token_ids,
                          .keys = keys.first(n_held + 1),
                          .at = end_of(lease),
                          .asking = tiers.was_stuck ? TierAsking::kNever : TierAsking::kMay};
  const LoadAnswer answer = is_stuck ? prefix_.tiering->explain(wanted) : prefix_.tiering->load(wanted);
  if (!answer.ticket) {
    miss = reason_of(answer.miss, miss);
    return std::nullopt;
  }
  tiers.load_from = n_held;
  return WaitOn{*answer.ticket, answer.deadline_us, WaitOn::For::kLoad};
}

// Of found_, which the lease takes over.
void Cache::count_restored(KvLease& lease) const {
  for (const NodeId id : found_) {
    if (const auto tier = prefix_.tiering->take_restored(id)) lease.tiers_.restored_tokens[*tier] += kBlockTokens;
  }
}

bool Cache::is_loading() const { return prefix_.tiering != nullptr && prefix_.tiering->is_loading(); }

}  // namespace pagoda::kv
