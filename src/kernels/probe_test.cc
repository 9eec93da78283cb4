#include "kernels/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace pagoda::kernels {
namespace {

double seconds_of(const auto& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

TEST(Probe, EveryIsaHasEveryKindButBf16) {
  for (const Isa isa : supported_isas()) {
    for (int i = 0; i < kDotKinds; ++i) {
      const auto kind = static_cast<DotKind>(i);
      const DotLoop loop = dot_loop(isa, kind);
      EXPECT_EQ(loop.run != nullptr, kind != DotKind::kBf16 || isa == Isa::kAmx) << to_string(isa) << to_string(kind);
      EXPECT_EQ(loop.run != nullptr, loop.ops_per_round > 0);
    }
  }
}

// A loop that the compiler could shorten would take no longer for ten times the rounds.
TEST(Probe, TimeGrowsWithTheRounds) {
  for (const Isa isa : supported_isas()) {
    for (int i = 0; i < kDotKinds; ++i) {
      const DotLoop loop = dot_loop(isa, static_cast<DotKind>(i));
      if (loop.run == nullptr) continue;
      const double few = seconds_of([&] { loop.run(20000); });
      const double many = seconds_of([&] { loop.run(200000); });
      EXPECT_GT(many, 3 * few) << to_string(isa) << " " << to_string(static_cast<DotKind>(i));
    }
  }
  EXPECT_GT(seconds_of([] { multiply_chain(1000000); }), 3 * seconds_of([] { multiply_chain(100000); }));
}

TEST(Probe, ReadsEveryWholeLine) {
  constexpr size_t kLines = 23;  // no multiple of the streams
  std::vector<std::byte> bytes(64 * kLines + 5);
  for (const Isa isa : supported_isas()) {
    EXPECT_EQ(read_bytes(isa, bytes), 0U) << to_string(isa);
    for (size_t line = 0; line < kLines; ++line) {
      for (size_t at = 64 * line; at < 64 * (line + 1); ++at) bytes[at] = std::byte{0xFF};
      EXPECT_NE(read_bytes(isa, bytes), 0U) << to_string(isa) << " line " << line;
      for (size_t at = 64 * line; at < 64 * (line + 1); ++at) bytes[at] = std::byte{0};
    }
    EXPECT_EQ(read_bytes(isa, std::span(bytes).first(63)), 0U);
  }
}

TEST(Probe, ChainMultiplies) {
  uint64_t power = 3;
  for (int i = 0; i < 16; ++i) power *= 5;
  EXPECT_EQ(multiply_chain(16), power);
}

}  // namespace
}  // namespace pagoda::kernels
