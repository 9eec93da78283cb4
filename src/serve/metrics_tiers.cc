// The metrics of tiers (metrics_pagoda.h).
#include "serve/metrics_pagoda.h"

namespace pagoda::serve {

void PagodaMetrics::read_tiers(const engine::EngineStats& stats) {
  const kv::TieringStats& tiering = stats.tiering;
  set_total(total("pagoda:tier_stored_blocks_total", "Blocks that at least one tier took"), tiering.stored_blocks);
  set_total(total("pagoda:tier_unstored_blocks_total", "Blocks that no tier took"), tiering.unstored_blocks);
  set(now("pagoda:tier_staged_bytes", "Blocks on their way to a tier"), tiering.staged_bytes);
  set_total(total("pagoda:tier_loads_total", "Loads that began"), tiering.loads);
  const std::pair<const char*, uint64_t> failures[] = {{"cut", tiering.loads_cut},
                                                       {"corrupt", tiering.loads_corrupt},
                                                       {"slow", tiering.loads_slow},
                                                       {"no_room", tiering.loads_no_room}};
  for (const auto& [reason, n] : failures) {
    set_total(total("pagoda:tier_load_failures_total",
                    "Loads that ended early (cut, and of those corrupt) or did not begin (slow, no_room)",
                    {{"reason", reason}}),
              n);
  }
  set_total(total("pagoda:tier_loaded_blocks_total", "Blocks that were loaded"), tiering.loaded_blocks);
  set_total(total("pagoda:tier_unused_blocks_total", "Loaded blocks that came too late to be used"),
            tiering.unused_blocks);
  set_total(total("pagoda:tier_load_seconds_total", "Time of all loads, from beginning to end"),
            seconds(static_cast<int64_t>(tiering.load_wait_us)));
  for (const engine::TierReport& tier : stats.tiers) {
    const Labels labels{{"tier", tier.name}};
    const kv::TierStats& store = tier.store;
    set_total(total("pagoda:tier_hits_total", "Reads that found their block", labels), store.hits);
    set_total(total("pagoda:tier_misses_total", "Reads that did not find their block", labels), store.misses);
    set_total(total("pagoda:tier_puts_total", "Blocks written", labels), store.puts);
    set_total(total("pagoda:tier_read_bytes_total", "Bytes read", labels), store.hit_bytes);
    set_total(total("pagoda:tier_written_bytes_total", "Bytes written", labels), store.put_bytes);
    set_total(total("pagoda:tier_restored_tokens_total", "Tokens of loaded blocks that a request then used", labels),
              tier.restored_tokens);
    set(now("pagoda:tier_used_bytes", "Bytes that the tier's blocks take", labels), store.used_bytes);
    set(now("pagoda:tier_budget_bytes", "Bytes that the tier's blocks may take; 0: not Pagoda's to bound", labels),
        store.budget_bytes);
    set(now("pagoda:tier_blocks", "Blocks in the tier, as far as this process knows", labels), store.objects);
    set(now("pagoda:tier_open_breakers", "1 while the tier is left alone because it failed", labels),
        store.open_breakers);
    set_total(total("pagoda:tier_breaker_openings_total", "Times that the tier began to be left alone", labels),
              store.breaker_openings);
    for (size_t i = 0; i < store.drops.size(); ++i) {
      const Labels why{{"tier", tier.name}, {"reason", std::string(to_string(static_cast<kv::TierDrop>(i)))}};
      set_total(total("pagoda:tier_drops_total", "Writes that were not tried or given up", why), store.drops[i]);
    }
    for (size_t i = 0; i < store.faults.size(); ++i) {
      const Labels why{{"tier", tier.name}, {"fault", std::string(to_string(static_cast<kv::TierFault>(i)))}};
      set_total(total("pagoda:tier_faults_total", "Errors of the tier", why), store.faults[i]);
    }
  }
}

}  // namespace pagoda::serve
