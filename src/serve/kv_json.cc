#include "serve/kv_json.h"

#include <algorithm>

#include "api/json_text.h"
#include "base/error.h"

namespace pagoda::serve {
namespace {

using api::json_string;
using engine::CacheReport;

struct Sums {
  int64_t prompt = 0, reused = 0, copied = 0;
  std::string_view miss = "none";
  std::vector<CacheReport::TierTokens> tiers;
  const CacheReport::Session* session = nullptr;  // the last one's
  bool has_report = false;
};

Sums sums_of(const CacheReports& reports) {
  Sums sums;
  for (const auto& report : reports) {
    if (!report) continue;
    sums.has_report = true;
    sums.prompt += report->prompt_tokens;
    sums.reused += report->reused_tokens;
    sums.copied += report->copied_tokens;
    if (report->session) sums.session = &*report->session;
    if (sums.miss == "none") sums.miss = report->first_miss_word();
    sums.tiers.resize(std::max(sums.tiers.size(), report->tiers.size()));
    for (size_t i = 0; i < report->tiers.size(); ++i) {
      sums.tiers[i].tier = report->tiers[i].tier;
      sums.tiers[i].tokens += report->tiers[i].tokens;
    }
  }
  return sums;
}

std::string token_json(const CacheReport::Token& token) {
  return fmt::format(R"({{"id":{},"text":{}}})", token.id.value, json_string(token.bytes));
}

// RAM gave what no tier below it did.
std::string by_tier_json(int64_t reused, std::span<const CacheReport::TierTokens> tiers) {
  std::string below;
  for (const CacheReport::TierTokens& tier : tiers) {
    below += fmt::format(R"(,"{}":{})", tier.tier, tier.tokens);
    reused -= tier.tokens;
  }
  return fmt::format(R"({{"ram":{}{}}})", reused, below);
}

std::string divergence_json(const CacheReport& report) {
  if (!report.divergence) return "null";
  const CacheReport::Divergence& found = *report.divergence;
  return fmt::format(R"({{"index":{},"token":{},"cached":{}}})", found.position, token_json(found.asked),
                     found.cached ? token_json(*found.cached) : "null");
}

std::string session_json(const CacheReport& report) {
  if (!report.session) return "null";
  return fmt::format(R"({{"id":{},"held_tokens":{}}})", json_string(report.session->id), report.session->held_tokens);
}

std::string report_json(size_t index, const CacheReport& report) {
  std::string misses;
  for (const CacheReport::Miss& miss : report.misses) {
    misses += fmt::format(R"({}{{"index":{},"reason":"{}"{}}})", misses.empty() ? "" : ",", miss.position, miss.word(),
                          miss.n_edits == 0 ? "" : fmt::format(R"(,"after_context_edits":{})", miss.n_edits));
  }
  return fmt::format(
      R"({{"prompt":{},"prompt_tokens":{},"reused_tokens":{},"reused_by_tier":{},"copied_tokens":{},)"
      R"("computed_tokens":{},"first_differing_token":{},"misses":[{}],"waited_ms":{:.3f},"load_waited_ms":{:.3f},"preemptions":{},)"
      R"("recomputed_tokens":{},"session":{}}})",
      index, report.prompt_tokens, report.reused_tokens, by_tier_json(report.reused_tokens, report.tiers),
      report.copied_tokens, report.computed_tokens(), divergence_json(report), misses,
      static_cast<double>(report.waited_us) / 1000, static_cast<double>(report.load_waited_us) / 1000,
      report.preemptions, report.recomputed_tokens, session_json(report));
}

std::string sharing_json(uint64_t logical, uint64_t stored) {
  return stored == 0 ? "null" : fmt::format("{:.4f}", static_cast<double>(logical) / static_cast<double>(stored));
}

std::string name_json(kv::ModelId model, std::span<const engine::ModelInfo> models) {
  return model.value < models.size() ? json_string(models[model.value].name) : "null";
}

std::string group_json(size_t index, const kv::GroupAccount& group) {
  return fmt::format(
      R"({{"group":{},"window_tokens":{},"block_bytes":{},"live_blocks":{},"cached_blocks":{},"stranded_blocks":{},)"
      R"("stored_tokens":{},"logical_tokens":{},"sharing_factor":{},"internal_waste_tokens":{},)"
      R"("reserved_unused_tokens":{}}})",
      index, group.window_tokens == 0 ? "null" : std::to_string(group.window_tokens), group.block_bytes,
      group.live_blocks, group.cached_blocks, group.free_blocks, group.stored_tokens, group.logical_tokens,
      sharing_json(group.logical_tokens, group.stored_tokens), group.wasted_tokens, group.reserved_tokens);
}

std::string models_json(const kv::Account& account, std::span<const engine::ModelInfo> models) {
  std::string out;
  for (const kv::ModelAccount& model : account.models) {
    std::string groups;
    for (size_t g = 0; g < model.groups.size(); ++g) groups += (g == 0 ? "" : ",") + group_json(g, model.groups[g]);
    out += fmt::format(R"({}{{"model":{},"groups":[{}]}})", out.empty() ? "" : ",", name_json(model.model, models),
                       groups);
  }
  return out;
}

std::string index_json(const kv::Account& account) {
  if (!account.index) return R"("evicted_blocks":null,"index":null)";
  const kv::PrefixStats& index = *account.index;
  return fmt::format(R"("evicted_blocks":{{"for_room":{},"for_other_groups":{},"window_share":{},"behind_window":{}}},)"
                     R"("index":{{"nodes":{},"bytes":{}}})",
                     index.evicted_for_room, index.evicted_for_others, index.evicted_local, index.passed_local,
                     index.nodes, index.memory_bytes);
}

std::string sessions_json(const kv::Account& account) {
  if (!account.sessions || !account.index) return "null";
  const kv::SessionStats& stats = *account.sessions;
  return fmt::format(
      R"({{"count":{},"pinned":{},"held_bytes":{},"pinned_bytes":{},"idle_bytes":{},"pin_limit_bytes":{},)"
      R"("evicted_blocks":{},"table_bytes":{},"turns":{},"created":{},"restored":{},"expired":{},"displaced":{},)"
      R"("deleted":{},"sinking":{}}})",
      stats.sessions, stats.pinned, account.index->held_bytes, account.index->pinned_bytes,
      account.index->held_bytes - account.index->pinned_bytes, stats.pin_limit_bytes, account.index->evicted_held,
      stats.table_bytes, stats.turns, stats.created, stats.restored, stats.expired, stats.displaced, stats.deleted,
      stats.sinking);
}

std::string reuse_json(const kv::Account& account) {
  if (!account.reuse) return "null";
  const kv::ReuseCurve& curve = *account.reuse;
  std::string rates;
  for (size_t i = 0; i < kv::ReuseCurve::kBudgets.size(); ++i) {
    const double budget = kv::ReuseCurve::kBudgets[i];
    rates += fmt::format(R"({}{{"budget":{},"bytes":{:.0f},"hit_rate":{}}})", i == 0 ? "" : ",", budget,
                         budget * static_cast<double>(account.pool.budget_bytes),
                         curve.looked_up_blocks == 0 ? "null" : fmt::format("{:.4f}", curve.hit_rate(i)));
  }
  return fmt::format(
      R"({{"looked_up_blocks":{},"sampled_blocks":{},"sampling_rate":{:.6g},"bytes":{},"hit_rates":[{}]}})",
      curve.looked_up_blocks, curve.sampled_blocks, curve.sampling_rate, account.reuse_bytes, rates);
}

// Each count that is not 0 by its name.
template <typename Kind, size_t kKinds>
std::string counts_json(const std::array<uint64_t, kKinds>& counts) {
  std::string out;
  for (size_t i = 0; i < kKinds; ++i) {
    if (counts[i] == 0) continue;
    out += fmt::format(R"({}"{}":{})", out.empty() ? "" : ",", to_string(static_cast<Kind>(i)), counts[i]);
  }
  return out;
}

std::string tiers_json(std::span<const engine::TierReport> tiers) {
  std::string out;
  for (const engine::TierReport& tier : tiers) {
    const kv::TierStats& store = tier.store;
    out += fmt::format(
        R"({}{{"tier":"{}","budget_bytes":{},"used_bytes":{},"blocks":{},"puts":{},"hits":{},"misses":{},)"
        R"("loaded_bytes":{},"restored_tokens":{},"read_bytes_per_s":{:.0f},"write_bytes_per_s":{:.0f},)"
        R"("drops":{{{}}},"faults":{{{}}}}})",
        out.empty() ? "" : ",", tier.name, store.budget_bytes == 0 ? "null" : std::to_string(store.budget_bytes),
        store.used_bytes, store.objects, store.puts, store.hits, store.misses, tier.loaded_bytes, tier.restored_tokens,
        store.read_bytes_per_s, store.write_bytes_per_s, counts_json<kv::TierDrop>(store.drops),
        counts_json<kv::TierFault>(store.faults));
  }
  return out;
}

char letter(kv::BlockState state) {
  switch (state) {
    case kv::BlockState::kFree:
      return '.';
    case kv::BlockState::kOpen:
      return 'o';
    case kv::BlockState::kSealed:
      return 's';
    case kv::BlockState::kCached:
      return 'c';
    case kv::BlockState::kLoading:
    case kv::BlockState::kSpilling:
    case kv::BlockState::kQuarantined:
      return '?';  // no tier does that yet
  }
  return '?';
}

}  // namespace

std::string cache_summary(const CacheReports& reports) {
  const Sums sums = sums_of(reports);
  if (!sums.has_report) return {};
  std::string summary = fmt::format("reused={} copied={} computed={} miss={}", sums.reused, sums.copied,
                                    sums.prompt - sums.reused, sums.miss);
  if (sums.session != nullptr)
    summary += fmt::format(" session={} held={}", sums.session->id, sums.session->held_tokens);
  return summary;
}

std::string cache_reports_json(std::string_view id, const CacheReports& reports) {
  const Sums sums = sums_of(reports);
  std::string prompts;
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i]) prompts += (prompts.empty() ? "" : ",") + report_json(i, *reports[i]);
  }
  return fmt::format(R"({{"object":"request.cache","id":{},"prompt_tokens":{},"reused_tokens":{},"reused_by_tier":{},)"
                     R"("copied_tokens":{},"computed_tokens":{},"prompts":[{}]}})",
                     json_string(id), sums.prompt, sums.reused, by_tier_json(sums.reused, sums.tiers), sums.copied,
                     sums.prompt - sums.reused, prompts);
}

std::string account_json(const kv::Account& account, std::span<const engine::ModelInfo> models,
                         std::span<const engine::TierReport> tiers) {
  const kv::PoolStats& pool = account.pool;
  const uint64_t logical = sum_bytes(account, &kv::GroupAccount::logical_tokens);
  const uint64_t stored = sum_bytes(account, &kv::GroupAccount::stored_tokens);
  return fmt::format(
      R"({{"object":"kv","budget_bytes":{},"live_bytes":{},"cached_bytes":{},"free_bytes":{},"overhead_bytes":{},)"
      R"("stored_bytes":{},"internal_waste_bytes":{},"reserved_unused_bytes":{},"stranded_bytes":{},)"
      R"("sharing_factor":{},"extents":{{"bytes":{},"count":{},"free":{}}},"descriptor_bytes":{},{},)"
      R"("sessions":{},"reuse_distance":{},"models":[{}],"tiers":[{}]}})",
      pool.budget_bytes, pool.live_bytes, pool.cached_bytes, pool.free_bytes, pool.overhead_bytes, stored,
      sum_bytes(account, &kv::GroupAccount::wasted_tokens), sum_bytes(account, &kv::GroupAccount::reserved_tokens),
      pool.free_bytes - pool.free_extents * account.extent_bytes, sharing_json(logical, stored), account.extent_bytes,
      account.n_extents, pool.free_extents, account.descriptor_bytes, index_json(account), sessions_json(account),
      reuse_json(account), models_json(account, models), tiers_json(tiers));
}

std::string block_map_json(const kv::BlockMapPage& map, std::span<const engine::ModelInfo> models) {
  std::string out =
      fmt::format(R"({{"object":"kv.blocks","page":{},"pages":{},"first_extent":{},"n_extents":{},"extents":[)",
                  map.page, map.n_pages, map.first_extent, map.n_extents);
  for (const kv::ExtentView& extent : map.extents) {
    std::string states, holders;
    for (const kv::SlotView& slot : extent.slots) {
      states += letter(slot.state);
      if (slot.n_holders > 0) holders += (holders.empty() ? "" : ",") + std::to_string(slot.n_holders);
    }
    out += fmt::format(R"({}{{"extent":{},"class":{},"model":{},"group":{},"slots":"{}","holders":[{}]}})",
                       out.back() == '[' ? "" : ",", extent.extent, extent.size_class.value,
                       name_json(extent.model, models), extent.group.value, states, holders);
  }
  return out + "]}";
}

}  // namespace pagoda::serve
