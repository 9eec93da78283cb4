#include "kv/reuse_distance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace pagoda::kv {

ReuseDistance::ReuseDistance(uint64_t budget_bytes, size_t least_bytes, size_t most_tracked) {
  CHECK(least_bytes > 0 && most_tracked > 0);
  for (size_t i = 0; i < limits_.size(); ++i) limits_[i] = static_cast<double>(budget_bytes) * ReuseCurve::kBudgets[i];
  const double n_blocks = limits_.back() / static_cast<double>(least_bytes);
  if (n_blocks > static_cast<double>(most_tracked)) {
    rate_ = static_cast<double>(most_tracked) / n_blocks;
    last_sampled_ = static_cast<uint64_t>(std::ldexp(rate_, 64));
  } else {
    most_tracked = static_cast<size_t>(n_blocks);
  }
  uses_.resize(2 * (most_tracked + 2));
  sums_.resize(uses_.size() + 1);
}

void ReuseDistance::look_up_sampled(const Hash128& key, size_t bytes) {
  ++n_sampled_;
  const auto at = slots_.find(key.low);
  if (at == slots_.end()) return;
  const auto in_front = static_cast<double>(bytes_since(at->second) - uses_[at->second].bytes);
  for (size_t i = 0; i < hits_.size(); ++i) hits_[i] += in_front <= most_in_front(i, bytes) ? 1 : 0;
}

void ReuseDistance::use_sampled(const Hash128& key, size_t bytes) {
  if (next_ == uses_.size()) compact();
  const auto [at, is_new] = slots_.try_emplace(key.low);
  if (!is_new) erase(at->second);
  at->second = next_;
  uses_[next_] = {key.low, bytes};
  add_bytes(next_++, bytes);
  total_bytes_ += bytes;
  drop_far();
}

// Of the use in `slot` and all later ones.
uint64_t ReuseDistance::bytes_since(uint32_t slot) const {
  uint64_t before = 0;
  for (uint32_t i = slot; i > 0; i &= i - 1) before += sums_[i];
  return total_bytes_ - before;
}

// Modulo 2^64, so that it also takes away.
void ReuseDistance::add_bytes(uint32_t slot, uint64_t bytes) {
  for (uint32_t i = slot + 1; i < sums_.size(); i += i & -i) sums_[i] += bytes;
}

void ReuseDistance::erase(uint32_t slot) {
  add_bytes(slot, -uses_[slot].bytes);
  total_bytes_ -= uses_[slot].bytes;
  uses_[slot] = {};
}

// Whoever would miss at the largest budget will not come nearer again.
void ReuseDistance::drop_far() {
  for (; oldest_ < next_; ++oldest_) {
    const auto [key, bytes] = uses_[oldest_];
    if (bytes == 0) continue;
    const bool is_near = static_cast<double>(total_bytes_ - bytes) <= most_in_front(limits_.size() - 1, bytes);
    if (is_near && slots_.size() <= uses_.size() / 2) return;
    erase(oldest_);
    slots_.erase(key);
  }
}

// Moves the uses to the first slots: at most half of them are taken then.
void ReuseDistance::compact() {
  next_ = oldest_ = 0;
  for (const Use& use : uses_) {
    if (use.bytes == 0) continue;
    slots_.find(use.key)->second = next_;
    uses_[next_++] = use;
  }
  std::fill(uses_.begin() + next_, uses_.end(), Use{});
  std::ranges::fill(sums_, 0);
  for (uint32_t slot = 0; slot < next_; ++slot) add_bytes(slot, uses_[slot].bytes);
}

ReuseCurve ReuseDistance::curve() const {
  ReuseCurve curve{
      .looked_up_blocks = looked_up_, .sampled_blocks = n_sampled_, .hit_blocks = {}, .sampling_rate = rate_};
  const auto all = static_cast<double>(looked_up_);
  const double missing = rate_ * all - static_cast<double>(n_sampled_);
  for (size_t i = 0; i < hits_.size(); ++i) {
    curve.hit_blocks[i] = std::clamp((static_cast<double>(hits_[i]) + missing) / rate_, 0.0, all);
  }
  return curve;
}

size_t ReuseDistance::memory_bytes() const {
  constexpr size_t kMapNodeBytes = 32;  // next, key, slot, the allocator's own
  return uses_.capacity() * sizeof(Use) + sums_.capacity() * sizeof(uint64_t) + slots_.size() * kMapNodeBytes +
         slots_.bucket_count() * sizeof(void*);
}

Status ReuseDistance::check_integrity() const {
  uint64_t total = 0;
  size_t n_uses = 0;
  for (uint32_t slot = static_cast<uint32_t>(uses_.size()); slot-- > 0;) {
    const Use& use = uses_[slot];
    total += use.bytes;
    if (bytes_since(slot) != total)
      return fail(ErrorCode::kInternal, "slot {}: {} bytes since", slot, bytes_since(slot));
    if (use.bytes == 0) continue;
    ++n_uses;
    const auto at = slots_.find(use.key);
    if (slot < oldest_ || slot >= next_ || at == slots_.end() || at->second != slot) {
      return fail(ErrorCode::kInternal, "slot {}: its key is elsewhere", slot);
    }
  }
  if (n_uses != slots_.size() || n_uses > uses_.size() / 2) {
    return fail(ErrorCode::kInternal, "{} uses of {} blocks", n_uses, slots_.size());
  }
  return {};
}

}  // namespace pagoda::kv
