#include "base/byte_budget.h"

#include "base/check.h"

namespace pagoda {

uint64_t ByteBudget::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

std::optional<ByteReservation> ByteBudget::try_reserve(uint64_t bytes) {
  if (!try_change(0, bytes)) return std::nullopt;
  return ByteReservation(*this, bytes);
}

ByteReservation ByteBudget::reserve(uint64_t bytes) {
  CHECK(bytes <= most_bytes());
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [&] { return change_locked(0, bytes); });
  return {*this, bytes};
}

bool ByteBudget::try_change(uint64_t from, uint64_t to) {
  {
    const std::lock_guard lock(mutex_);
    if (!change_locked(from, to)) return false;
  }
  if (to < from) freed_.notify_all();
  return true;
}

bool ByteBudget::change_locked(uint64_t from, uint64_t to) {
  const auto large = [this](uint64_t bytes) { return bytes > small_bytes() ? bytes : 0; };
  const uint64_t others = used_bytes_ - from, other_large = large_bytes_ - large(from);
  if (to > from) {
    if (to > bytes_ - others) return false;
    if (large(to) > 0 && (other_large > most_bytes() || to > most_bytes() - other_large)) return false;
  }
  used_bytes_ = others + to;
  large_bytes_ = other_large + large(to);
  return true;
}

bool ByteReservation::grow_to(uint64_t bytes) {
  if (bytes <= bytes_) return true;
  if (budget_ == nullptr || !budget_->try_change(bytes_, bytes)) return false;
  bytes_ = bytes;
  return true;
}

void ByteReservation::shrink_to(uint64_t bytes) {
  if (bytes >= bytes_) return;
  budget_->try_change(bytes_, bytes);
  bytes_ = bytes;
}

}  // namespace pagoda
