// StringIndex: byte strings to ids, built once, then read by any thread. Open addressing, at most two thirds full.
// Owner: keys point into the caller's storage, which must outlive the index and not move. A repeated key keeps the last id.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace pagoda::text {

class StringIndex {
 public:
  static constexpr int32_t kAbsent = -1;

  explicit StringIndex(size_t expected_keys = 0) { resize(std::bit_ceil(expected_keys * 3 / 2 + 8)); }

  void insert(std::string_view key, int32_t id) {
    if ((n_keys_ + 1) * 3 > slots_.size() * 2) grow();
    Slot& slot = slots_[find_slot(key, hash(key))];
    if (slot.id == kAbsent) ++n_keys_;
    slot = {key.data(), static_cast<uint32_t>(key.size()), id};
  }

  int32_t find(std::string_view key) const { return slots_[find_slot(key, hash(key))].id; }

  static uint64_t hash(std::string_view key) {
    constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;
    uint64_t h = key.size() * kMultiplier;
    const char* p = key.data();
    size_t n = key.size();
    for (; n >= 8; p += 8, n -= 8) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      h = std::rotl((h ^ word) * kMultiplier, 29);
    }
    uint64_t tail = 0;
    for (size_t i = 0; i < n; ++i) tail |= static_cast<uint64_t>(static_cast<uint8_t>(p[i])) << (8 * i);
    h = (h ^ tail) * kMultiplier;
    h ^= h >> 32;
    return h * kMultiplier;
  }

 private:
  struct Slot {
    const char* data = nullptr;
    uint32_t size = 0;
    int32_t id = kAbsent;
  };

  // The slot that holds key, or the empty one where it would go.
  size_t find_slot(std::string_view key, uint64_t h) const {
    const size_t mask = slots_.size() - 1;
    size_t i = (h >> 32) & mask;
    while (slots_[i].id != kAbsent &&
           (slots_[i].size != key.size() || std::memcmp(slots_[i].data, key.data(), key.size()) != 0)) {
      i = (i + 1) & mask;
    }
    return i;
  }

  void resize(size_t n) { slots_.assign(n, Slot{}); }

  void grow() {
    const std::vector<Slot> old = std::move(slots_);
    resize(old.size() * 2);
    for (const Slot& slot : old) {
      if (slot.id == kAbsent) continue;
      const std::string_view key{slot.data, slot.size};
      slots_[find_slot(key, hash(key))] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t n_keys_ = 0;
};

}  // namespace pagoda::text
