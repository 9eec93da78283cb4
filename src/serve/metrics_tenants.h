// TenantMetrics: requests, tokens and time to first token by tenant, when a request ends.
// Bounds: the first kMostTenants tenants have their own series, later ones share "other"; "none": requests without a tenant.
// Threads: one.
#pragma once

#include <map>
#include <string>

#include "engine/records.h"
#include "serve/metrics_families.h"

namespace pagoda::serve {

class TenantMetrics {
 public:
  static constexpr size_t kMostTenants = 32;

  explicit TenantMetrics(prometheus::Registry& registry);
  void on_request(const engine::RequestRecord& record);

 private:
  struct Tenant {
    std::array<Counter*, 6> endings{};
    Counter *prompt = nullptr, *cached = nullptr, *generated = nullptr;
    Histogram* first_token = nullptr;
  };
  Tenant& tenant_of(const std::string& name);
  Tenant make(const std::string& label);

  Families families_;
  std::map<std::string, Tenant> tenants_;
  Tenant other_;
};

}  // namespace pagoda::serve
