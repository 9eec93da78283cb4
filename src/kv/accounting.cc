#include "kv/accounting.h"

#include <algorithm>

namespace pagoda::kv {
namespace {

GroupAccount account_of_group(const BlockPool& pool, const Cache& cache, GroupId id,
                              std::span<const KvLease* const> leases) {
  const ClassId size_class = cache.size_class(id);
  GroupAccount group{.window_tokens = cache.group(id).window_tokens,
                     .block_bytes = cache.group(id).block_bytes,
                     .live_blocks = pool.live_blocks(size_class),
                     .cached_blocks = pool.cached_blocks(size_class),
                     .free_blocks = pool.free_blocks(size_class)};
  for (const KvLease* lease : leases) {
    if (lease->model() != cache.model()) continue;
    group.logical_tokens += static_cast<uint64_t>(lease->n_committed() - lease->n_dropped(id));
    group.reserved_tokens += static_cast<uint64_t>(lease->n_written() - lease->n_committed());
    group.wasted_tokens += lease->blocks(id).size() * kBlockTokens - static_cast<uint64_t>(lease->n_written());
  }
  group.stored_tokens = group.live_blocks * kBlockTokens - group.reserved_tokens - group.wasted_tokens;
  return group;
}

struct Owner {
  ModelId model;
  GroupId group;
};

std::optional<Owner> owner_of(std::span<const Cache* const> caches, ClassId size_class) {
  for (const Cache* cache : caches) {
    for (uint32_t g = 0; g < cache->n_groups(); ++g) {
      if (cache->size_class(GroupId(g)) == size_class) return Owner{cache->model(), GroupId(g)};
    }
  }
  return std::nullopt;
}

}  // namespace

Account account_of(const BlockPool& pool, std::span<const Cache* const> caches,
                   std::span<const KvLease* const> leases) {
  Account account{.pool = pool.stats(),
                  .extent_bytes = pool.extent_bytes(),
                  .n_extents = pool.n_extents(),
                  .descriptor_bytes = pool.descriptor_bytes(),
                  .models = {},
                  .index = {},
                  .sessions = {},
                  .reuse = {}};
  for (const Cache* cache : caches) {
    ModelAccount model{cache->model(), {}};
    for (uint32_t g = 0; g < cache->n_groups(); ++g) {
      model.groups.push_back(account_of_group(pool, *cache, GroupId(g), leases));
    }
    account.models.push_back(std::move(model));
    // All caches of a pool share these.
    if (cache->index() != nullptr) account.index = cache->index()->stats();
    if (cache->reuse() == nullptr) continue;
    account.reuse = cache->reuse()->curve();
    account.reuse_bytes = cache->reuse()->memory_bytes();
  }
  return account;
}

BlockMapPage block_map_page(const BlockPool& pool, std::span<const Cache* const> caches, uint64_t page) {
  uint32_t most_slots = 1;
  for (uint32_t c = 0; c < pool.n_classes(); ++c) most_slots = std::max(most_slots, pool.slots_per_extent(ClassId(c)));
  const uint32_t per_page = std::max(1u, kMapSlots / most_slots);
  const auto n_all = static_cast<uint32_t>(pool.n_extents());
  BlockMapPage map{.page = page, .n_pages = std::max(1u, (n_all + per_page - 1) / per_page), .extents = {}};
  if (page >= map.n_pages) return map;
  map.first_extent = static_cast<uint32_t>(page) * per_page;
  map.n_extents = std::min(per_page, n_all - map.first_extent);
  for (uint32_t e = map.first_extent; e < map.first_extent + map.n_extents; ++e) {
    const std::optional<ClassId> size_class = pool.class_of_extent(e);
    const std::optional<Owner> owner = size_class ? owner_of(caches, *size_class) : std::nullopt;
    if (!owner) continue;
    ExtentView view{e, owner->model, owner->group, *size_class, {}};
    view.slots.reserve(pool.slots_per_extent(*size_class));
    for (uint32_t slot = 0; slot < pool.slots_per_extent(*size_class); ++slot) {
      const BlockId block = BlockId::at(e, slot);
      view.slots.push_back({pool.state(block), pool.refs(block)});
    }
    map.extents.push_back(std::move(view));
  }
  return map;
}

}  // namespace pagoda::kv
