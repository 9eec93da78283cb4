// Probe loop of AMX-BF16: four tiles of sums, each with its own operand of two, as a 2 x 2 register block has them.
#include "kernels/amx/tiles.h"
#include "kernels/probe_loops.h"

namespace pagoda::kernels {
namespace {

constexpr double kOpsPerDot = 2.0 * kTileRows * kTileFloats * 2 * kTilePairs;

void bf16_rounds(int64_t n) {
  AmxTiles tiles;
  tiles.configure(whole_tiles());
  for (int64_t i = 0; i < n; ++i) {
    tiles.dot_bf16<0, 4, 6>();
    tiles.dot_bf16<1, 4, 7>();
    tiles.dot_bf16<2, 5, 6>();
    tiles.dot_bf16<3, 5, 7>();
  }
}

}  // namespace

DotLoop dot_loop_amx(DotKind kind) {
  if (kind == DotKind::kBf16) return {bf16_rounds, 4 * kOpsPerDot};
  return {};
}

}  // namespace pagoda::kernels
