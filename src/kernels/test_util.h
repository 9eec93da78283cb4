// Numbers and comparisons of the kernel tests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/random.h"

namespace pagoda::kernels {

// Bell-shaped around 0, standard deviation about 0.8 * amount, keyed by seed and index.
inline std::vector<float> random_floats(uint64_t seed, size_t n, float amount = 1.0f) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    double sum = 0.0;
    for (uint32_t draw = 0; draw < 2; ++draw) sum += 2.0 * uniform(seed, 0, static_cast<uint32_t>(i), draw) - 1.0;
    x[i] = amount * static_cast<float>(sum);
  }
  return x;
}

inline testing::AssertionResult same_bits(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return testing::AssertionFailure() << got.size() << " values, want " << want.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(want[i])) continue;
    return testing::AssertionFailure() << "value " << i << " is " << got[i] << ", want " << want[i];
  }
  return testing::AssertionSuccess();
}

// 64-byte aligned, zeroed.
struct AlignedBytes {
  explicit AlignedBytes(size_t n_bytes)
      : size((n_bytes + 63) / 64 * 64), data(static_cast<std::byte*>(std::aligned_alloc(64, size))) {
    std::memset(data, 0, size);
  }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(data); }

  size_t size;
  std::byte* data;
};

}  // namespace pagoda::kernels
