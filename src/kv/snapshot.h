// Snapshot<T>: a small record of counters that one thread replaces and any thread reads whole, never half old and half new.
// T: trivially copyable, a multiple of 8 bytes. A reader that meets a writer tries again; the writer never waits.
// Threads: store from one, load from any.     Cost: one relaxed or release store per 8 bytes (plain moves on x86).
// Source: Boehm 2012, "Can seqlocks get along with programming language memory models?"; differs: ordered data accesses, no fences.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace pagoda::kv {

template <typename T>
class Snapshot {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;

 public:
  explicit Snapshot(const T& value = T{}) { store(value); }

  void store(const T& value) {
    const Words words = std::bit_cast<Words>(value);
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);  // odd: being written
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  T load() const {
    Words words;
    for (;;) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return std::bit_cast<T>(words);
    }
  }

 private:
  std::atomic<uint64_t> version_{0};
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

}  // namespace pagoda::kv
