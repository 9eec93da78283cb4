// TieredWorld: a PrefixWorld with one FakeTier, whose content outlives it. Tests only.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kv/fake_tier.h"
#include "kv/test_prefix_world.h"

namespace pagoda::kv {

struct TieredWorld : PrefixWorld {
  TieredWorld(size_t n_extents, FakeTier::Objects& objects,
              const std::vector<std::vector<GroupSpec>>& models = kOneGroup,
              FakeTier::Index index = FakeTier::Index::kKept, const TieringConfig& config = {},
              SessionKeeper* keeper = nullptr)
      : PrefixWorld(n_extents, models, xxh3_128, WithTiers::kYes, config, keeper) {
    auto fake = std::make_unique<FakeTier>(objects, tiering->io(), index);
    tier = fake.get();
    tiering->add_store(std::move(fake));
  }

  // Whatever the tier has done by now arrives.
  std::vector<TicketId> poll() {
    std::vector<TicketId> tickets;
    caches[0]->take_completed(tickets);
    return tickets;
  }

  // Admits, waiting as often as it must, and computes the rest. `reused_tokens`: where it began to compute.
  Granted serve(KvLease& lease, std::span<const TokenId> tokens) {
    for (int turn = 0; turn < 100; ++turn) {
      const Admission answer = admit(lease, tokens, static_cast<int32_t>(tokens.size()) - lease.n_written());
      if (const auto* granted = std::get_if<Granted>(&answer)) {
        Granted sum = *granted;
        sum.reused_tokens = lease.n_committed();
        restored = lease.restored_tokens()[0];
        commit(lease);
        check(lease);
        sound({&lease});
        return sum;
      }
      if (!std::holds_alternative<WaitOn>(answer)) break;
      ++n_waits;
      sound({&lease});
      const TicketId ticket = std::get<WaitOn>(answer).ticket;
      for (int i = 0; i < 100 && std::ranges::count(poll(), ticket) == 0; ++i) sound({&lease});
    }
    ADD_FAILURE() << "was never granted";
    return {};
  }
  // The same by a lease of its own, which then ends; what it stored arrives.
  Granted serve(std::span<const TokenId> tokens, CacheNamespace cache_namespace = {}) {
    KvLease lease(ModelId(0), cache_namespace);
    const Granted granted = serve(lease, tokens);
    release(lease);
    poll();
    sound({});
    return granted;
  }
  void sound(const std::vector<const KvLease*>& leases) {
    const Status status = caches[0]->check_integrity(leases);
    EXPECT_TRUE(status) << status.error().message;
  }
  TieringStats stats() const { return tiering->stats(); }

  FakeTier* tier = nullptr;
  int n_waits = 0;
  int32_t restored = 0;  // of the last one served
};

inline const std::vector<std::vector<GroupSpec>> kWindowed{
    {{.block_bytes = 256}, {.block_bytes = 256, .window_tokens = 80}}};

}  // namespace pagoda::kv
