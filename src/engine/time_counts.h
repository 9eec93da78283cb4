// TimeCounts: how many durations fell into each of fixed buckets, and their sum: a histogram as plain data, which travels in a record and
// is added to one that is kept elsewhere. Units: microseconds.     Threads: whoever owns it.     Cost: add O(log buckets).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pagoda::engine {

// kBounds: ascending; bucket i counts what is at most kBounds[i] and more than the bound before, the last one what is beyond all.
template <const auto& kBounds>
struct TimeCounts {
  static constexpr const auto& bounds_us = kBounds;
  std::array<uint16_t, kBounds.size() + 1> counts{};
  int64_t sum_us = 0;

  void add(int64_t us) {
    ++counts[static_cast<size_t>(std::ranges::lower_bound(kBounds, us) - kBounds.begin())];
    sum_us += us;
  }
  bool operator==(const TimeCounts&) const = default;
};

// vLLM's buckets, and finer ones below: a small model's tokens come every few milliseconds.
inline constexpr std::array<int64_t, 23> kTokenGapBoundsUs{
    1'000,     2'500,     5'000,     7'500,      10'000,     25'000,     50'000,    75'000,
    100'000,   150'000,   200'000,   300'000,    400'000,    500'000,    750'000,   1'000'000,
    2'500'000, 5'000'000, 7'500'000, 10'000'000, 20'000'000, 40'000'000, 80'000'000};
inline constexpr std::array<int64_t, 22> kFirstTokenBoundsUs{
    1'000,      5'000,      10'000,     20'000,      40'000,      60'000,       80'000,    100'000,
    250'000,    500'000,    750'000,    1'000'000,   2'500'000,   5'000'000,    7'500'000, 10'000'000,
    20'000'000, 40'000'000, 80'000'000, 160'000'000, 640'000'000, 2'560'000'000};

}  // namespace pagoda::engine
