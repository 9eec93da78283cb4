// What each instruction set does with its own function of one tile. Internal.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/kernels.h"
#include "kernels/math.h"

namespace pagoda::kernels {

// One tile: its maximum and the sum of exp(x - max) in 16 lanes and the fixed tree; {-inf, 0} if nothing is above -inf.
struct TileSum {
  float max;
  float sum;
};

// What exp_sums takes for an exponent that is lower or NaN: its exp is 0.
inline constexpr float kExpNever = -88.0f;
static_assert(kExpNever < kExpLowest);

inline void fill_tiles(LogitTile (*largest)(const float*, int), const float* x, int n, LogitTile* tiles) {
  for (int begin = 0; begin < n; begin += kLogitsTile) {
    LogitTile tile = largest(x + begin, std::min(kLogitsTile, n - begin));
    tile.index += begin;
    *tiles++ = tile;
  }
}

// log(sum(exp(x))), folded left to right in double.
inline double fold_tiles(TileSum (*tile_sum)(const float*, int), const float* x, int n) {
  float max = -std::numeric_limits<float>::infinity();
  double sum = 0.0;
  for (int begin = 0; begin < n; begin += kLogitsTile) {
    const TileSum tile = tile_sum(x + begin, std::min(kLogitsTile, n - begin));
    if (tile.sum == 0.0f) continue;
    const float highest = tile.max > max ? tile.max : max;
    sum = sum * exp_f32(max - highest) + static_cast<double>(tile.sum) * exp_f32(tile.max - highest);
    max = highest;
  }
  return sum > 0.0 ? max + log_f64(sum) : static_cast<double>(max);
}

}  // namespace pagoda::kernels
