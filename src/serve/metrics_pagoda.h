// PagodaMetrics: what no other server has a name for (pagoda:*): KV memory, misses, tiers, sessions, steps, HTTP, tenants; and the usual
// figures of the process.
// Threads: one.     Bounds: labels come from fixed lists, but for routes and tiers, of which there are few, and tenants (metrics_tenants.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "http/counts.h"
#include "serve/metrics_families.h"
#include "serve/metrics_tenants.h"

namespace pagoda::serve {

// What a scrape finds, besides what was counted from records.
struct MetricsReading {
  engine::EngineStats engine{};
  std::optional<kv::Account> account{};  // the last there was; none yet: not known
  http::HttpStats http{};
  std::vector<std::pair<std::string_view, uint64_t>> outcomes{};  // of API requests, ever (access_log.h)
  uint64_t dropped_requests = 0;                                  // records that no reader saw
  uint64_t dropped_steps = 0;
};

class PagodaMetrics {
 public:
  PagodaMetrics(prometheus::Registry& registry, const std::string& version);

  void on_request(const engine::RequestRecord& record);
  void on_step(const engine::StepRecord& record);
  void read(const MetricsReading& reading);

 private:
  void make_misses();
  void make_steps();
  void read_memory(const engine::EngineStats& stats);
  void read_account(const kv::Account& account);
  void read_tiers(const engine::EngineStats& stats);
  void read_http(const http::HttpStats& stats);
  void read_process();

  Counter& total(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& now(const std::string& name, const std::string& help, const Labels& labels = {});

  Families families_;
  TenantMetrics tenants_;
  std::vector<Counter*> missed_requests_, missed_tokens_;  // by kv::MissReason
  Histogram *plan_ = nullptr, *forward_ = nullptr, *sample_ = nullptr;
  Counter *prefill_rows_ = nullptr, *decode_rows_ = nullptr;
  Counter *recomputed_ = nullptr, *copied_ = nullptr, *dropped_ = nullptr;
  Counter *shared_wait_ = nullptr, *load_wait_ = nullptr;
};

}  // namespace pagoda::serve
