// ByteBudget: so many bytes that many share. Who is about to allocate reserves first, and gives back when it has freed.
// A few large takers must not starve the many small ones: reservations above small_bytes() are large, and all of them together may have three
// quarters; the last quarter is for small ones.
// Owns: nothing; a budget outlives its reservations.     Threads: a budget from any; a reservation from one at a time.
// Errors: no room is an answer, never a failure.     Cost: one lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace pagoda {

class ByteReservation;

class ByteBudget {
 public:
  explicit ByteBudget(uint64_t bytes) : bytes_(bytes) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  uint64_t bytes() const { return bytes_; }
  uint64_t small_bytes() const { return bytes_ / 256; }
  // Of one reservation: what is larger never gets room.
  uint64_t most_bytes() const { return bytes_ - bytes_ / 4; }
  uint64_t used_bytes() const;

  // Nothing: not now. Of no bytes: always.
  std::optional<ByteReservation> try_reserve(uint64_t bytes);
  // Waits until there is room. For work that ends by itself: who waits must hold nothing of this budget. Requires bytes <= most_bytes().
  ByteReservation reserve(uint64_t bytes);

 private:
  friend class ByteReservation;
  // Turns a reservation of `from` into one of `to`.
  bool try_change(uint64_t from, uint64_t to);
  bool change_locked(uint64_t from, uint64_t to);

  const uint64_t bytes_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  uint64_t used_bytes_ = 0;   // guarded by mutex_
  uint64_t large_bytes_ = 0;  // likewise: of used_bytes_
};

class ByteReservation {
 public:
  ByteReservation() = default;  // of no bytes; it cannot grow
  // Of no bytes yet; null: as above.
  explicit ByteReservation(ByteBudget* budget) : budget_(budget) {}
  ByteReservation(ByteReservation&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteReservation& operator=(ByteReservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ByteReservation() { shrink_to(0); }

  uint64_t bytes() const { return bytes_; }
  // At least that many; false: no room, and it is as it was.
  [[nodiscard]] bool grow_to(uint64_t bytes);
  // At most that many.
  void shrink_to(uint64_t bytes);

 private:
  friend class ByteBudget;
  ByteReservation(ByteBudget& budget, uint64_t bytes) : budget_(&budget), bytes_(bytes) {}
  ByteBudget* budget_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace pagoda
