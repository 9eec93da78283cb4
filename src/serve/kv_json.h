// What is said of the cache, as text: the header of an answer, and the JSON of /v1/requests/{id}/cache, /v1/kv and /v1/kv/blocks.
// Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "serve/request_log.h"

namespace pagoda::serve {

// "reused=2016 copied=14 computed=9 miss=cold", and of a session's request " session=ID held=2048" behind it; summed over the prompts; the
// first miss there is. The copied are among the reused. Empty if there is no report.
std::string cache_summary(const CacheReports& reports);
std::string cache_reports_json(std::string_view id, const CacheReports& reports);

// ModelIds are indices of `models`.
std::string account_json(const kv::Account& account, std::span<const engine::ModelInfo> models,
                         std::span<const engine::TierReport> tiers);
// Slots as one letter each: . free, o open, s sealed, c cached; `holders` of the open and sealed ones, in order.
std::string block_map_json(const kv::BlockMapPage& map, std::span<const engine::ModelInfo> models);

}  // namespace pagoda::serve
