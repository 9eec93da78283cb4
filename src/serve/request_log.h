// RequestLog: the cache reports of the last calls, by the ids that their clients know.
// A report is its tenant's only. Of them who knows an id reads it, and it holds a token or two of the prompt. So ids are unguessable: those the
// server made; one that a client chose itself only names calls without cache_salt, the newest where several have it.
// Bounds: kMostCalls calls and kMostReports reports, whichever is less; the oldest go. Some hundred bytes a report.
// Threads: any.     Cost: add O(1), find O(kMostCalls).
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"

namespace pagoda::serve {

// By prompt of the call.
using CacheReports = std::vector<std::shared_ptr<const engine::CacheReport>>;

class RequestLog {
 public:
  static constexpr size_t kMostCalls = 1024;
  static constexpr size_t kMostReports = 4096;

  void add(std::string tenant, std::vector<std::string> ids, CacheReports reports);
  std::optional<CacheReports> find(std::string_view tenant, std::string_view id) const;

 private:
  struct Entry {
    std::string tenant;
    std::vector<std::string> ids;
    CacheReports reports;
  };
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;  // guarded by mutex_, oldest first
  size_t n_reports_ = 0;       // guarded by mutex_
};

}  // namespace pagoda::serve
