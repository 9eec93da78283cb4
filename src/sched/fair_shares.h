// FairShares: how much of the machine each tenant has had: computed tokens by its weight (virtual tokens). Whoever has had the least is next.
// Who comes, or comes back, starts at the least of those that are there, or at the last that was: what it did not use is not saved up, what it
// used beyond stays.
// Cost: O(tenants with sequences) to enter, else O(1).
// Source: Sheng et al. 2024 (virtual token counter).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>

#include "sched/sequence.h"

namespace pagoda::sched {

class FairShares {
 public:
  // One more of the tenant's sequences is there, or one less.
  void enter(TenantId tenant) {
    Account& account = accounts_[tenant];
    if (account.n_sequences > 0) {
      ++account.n_sequences;
      return;
    }
    account.served = std::max(account.served, least_served());
    account.n_sequences = 1;
    ++n_present_;
  }
  void leave(TenantId tenant) {
    Account& account = accounts_.at(tenant);
    if (--account.n_sequences > 0) return;
    --n_present_;
    last_served_ = account.served;
  }
  // One of them begins to run, or stops.
  void start(TenantId tenant) { ++accounts_.at(tenant).n_running; }
  void stop(TenantId tenant) { --accounts_.at(tenant).n_running; }
  void charge(const Share& share, int32_t n_tokens) {
    accounts_[share.tenant].served += static_cast<double>(n_tokens) / std::max(1, share.weight);
  }
  // Tokens by weight.
  double served(TenantId tenant) const {
    const auto at = accounts_.find(tenant);
    return at == accounts_.end() ? 0 : at->second.served;
  }
  // Of those that are there; or of the last that was.
  double least_served() const {
    if (n_present_ == 0) return last_served_;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [id, account] : accounts_) {
      if (account.n_sequences > 0) least = std::min(least, account.served);
    }
    return least;
  }
  int n_running(TenantId tenant) const {
    const auto at = accounts_.find(tenant);
    return at == accounts_.end() ? 0 : at->second.n_running;
  }
  // It is there, beside others, and nothing of it runs.
  bool is_owed(TenantId tenant) const { return are_several() && n_running(tenant) == 0; }
  bool are_several() const { return n_present_ > 1; }

 private:
  struct Account {
    double served = 0;
    int n_sequences = 0;
    int n_running = 0;
  };
  std::unordered_map<TenantId, Account> accounts_;
  int n_present_ = 0;       // tenants with sequences
  double last_served_ = 0;  // of who left last
};

}  // namespace pagoda::sched
