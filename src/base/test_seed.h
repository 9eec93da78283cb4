// The seed of a random test: --gtest_random_seed where it is given, so that a failure can be run again, else a new one. It is printed.
// Tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

namespace pagoda {

inline unsigned test_seed() {
  const auto given = static_cast<unsigned>(GTEST_FLAG_GET(random_seed));
  const unsigned seed = given != 0 ? given : std::random_device{}() % (1U << 31);
  std::printf("seed %u\n", seed);
  return seed;
}

}  // namespace pagoda
