#include "serve/request_log.h"

#include <algorithm>
#include <utility>

namespace pagoda::serve {

void RequestLog::add(std::string tenant, std::vector<std::string> ids, CacheReports reports) {
  const std::lock_guard lock(mutex_);
  n_reports_ += reports.size();
  entries_.push_back({std::move(tenant), std::move(ids), std::move(reports)});
  while (entries_.size() > kMostCalls || n_reports_ > kMostReports) {
    n_reports_ -= entries_.front().reports.size();
    entries_.pop_front();
  }
}

std::optional<CacheReports> RequestLog::find(std::string_view tenant, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  for (auto at = entries_.rbegin(); at != entries_.rend(); ++at) {
    if (at->tenant == tenant && std::ranges::find(at->ids, id) != at->ids.end()) return at->reports;
  }
  return std::nullopt;
}

}  // namespace pagoda::serve
