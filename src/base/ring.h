// Ring<T>: a bounded queue of plain records from one producer thread to one consumer thread. A full ring drops and counts;
// it never waits. Threads: push from one, pop from one other.     Cost: O(1), no allocation after construction.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace pagoda {

template <typename T>
class Ring {
 public:
  // Holds at least min_capacity records.
  explicit Ring(size_t min_capacity) : slots_(std::bit_ceil(min_capacity)), mask_(slots_.size() - 1) {}

  // False if the ring was full: the record is dropped and counted.
  bool push(T record) {
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == slots_.size()) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    slots_[tail & mask_] = std::move(record);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  std::optional<T> pop() {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return std::nullopt;
    std::optional<T> record{std::move(slots_[head & mask_])};
    head_.store(head + 1, std::memory_order_release);
    return record;
  }

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  size_t capacity() const { return slots_.size(); }

 private:
  std::vector<T> slots_;
  size_t mask_;
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::atomic<uint64_t> tail_{0};
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace pagoda
