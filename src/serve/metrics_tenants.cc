#include "serve/metrics_tenants.h"

namespace pagoda::serve {
namespace {

constexpr std::array<const char*, 6> kEndings{"stop", "length", "abort", "error", "refused", "timeout"};
const Buckets kFirstTokenSeconds{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

size_t ending_of(const engine::RequestRecord& record) {
  using Outcome = engine::RequestRecord::Outcome;
  switch (record.outcome) {
    case Outcome::kStop:
      return 0;
    case Outcome::kLength:
      return 1;
    case Outcome::kCancelled:
      return 2;
    case Outcome::kFailed:
      return record.started_us != 0 ? 3 : 4;
    case Outcome::kTimeout:
      return 5;
  }
  return 3;
}

}  // namespace

TenantMetrics::TenantMetrics(prometheus::Registry& registry) : families_(registry) {
  other_ = make("other");
  tenants_.emplace("", make("none"));
}

TenantMetrics::Tenant TenantMetrics::make(const std::string& label) {
  const auto counter = [&](const char* name, const char* help) {
    return &families_.counters(name, help).Add({{"tenant", label}});
  };
  Tenant tenant;
  for (size_t i = 0; i < kEndings.size(); ++i) {
    tenant.endings[i] = &families_.counters("pagoda:tenant_requests_total", "Requests that ended, by tenant and why")
                             .Add({{"tenant", label}, {"finished_reason", kEndings[i]}});
  }
  tenant.prompt = counter("pagoda:tenant_prompt_tokens_total", "Prompt tokens of requests that ended");
  tenant.cached = counter("pagoda:tenant_cached_tokens_total", "Cached prompt tokens of requests that ended");
  tenant.generated = counter("pagoda:tenant_generation_tokens_total", "Tokens generated for requests that ended");
  tenant.first_token =
      &families_.histograms("pagoda:tenant_time_to_first_token_seconds", "From arrival to first token, by tenant")
           .Add({{"tenant", label}}, kFirstTokenSeconds);
  return tenant;
}

TenantMetrics::Tenant& TenantMetrics::tenant_of(const std::string& name) {
  const auto at = tenants_.find(name);
  if (at != tenants_.end()) return at->second;
  const bool is_reserved = name == "other" || name == "none";        // its series is somebody else's
  if (is_reserved || tenants_.size() > kMostTenants) return other_;  // the one without a name does not count
  return tenants_.emplace(name, make(name)).first->second;
}

void TenantMetrics::on_request(const engine::RequestRecord& record) {
  const Tenant& tenant = tenant_of(record.tenant);
  tenant.endings[ending_of(record)]->Increment();
  if (record.first_token_us == 0) return;
  tenant.prompt->Increment(record.prompt_tokens);
  tenant.cached->Increment(record.cached_tokens);
  tenant.generated->Increment(record.completion_tokens);
  tenant.first_token->Observe(seconds(record.first_token_us - record.arrival_us));
}

}  // namespace pagoda::serve
