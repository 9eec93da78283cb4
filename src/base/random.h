// Counter-based random numbers: a draw is a pure function of its key, so what one request draws never depends on its neighbours.
// Source: Salmon et al. 2011 (Philox 4x32-10).
#pragma once

#include <array>
#include <cstdint>

namespace pagoda {

// Ten rounds of Philox 4x32.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits, keyed by a request's seed, its choice (of n), the token position and the number of the draw there.
constexpr double uniform(uint64_t seed, uint32_t choice, uint32_t position, uint32_t draw) {
  const auto r = philox4x32({choice, position, draw, 0x5061676FU},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>(((uint64_t{r[0]} << 32) | r[1]) >> 11) * 0x1.0p-53;
}

}  // namespace pagoda
