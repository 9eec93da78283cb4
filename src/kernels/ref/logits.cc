// Rows of logits: the definition, in plain loops.
#include "kernels/logits.h"

#include <cmath>
#include <limits>

#include "kernels/math.h"
#include "kernels/ref/lanes.h"
#include "kernels/table.h"

namespace pagoda::kernels::ref {
namespace {

void softcap(float* x, int n, float cap) {
  for (int i = 0; i < n; ++i) x[i] = softcap_f32(x[i], cap);
}

// NaN is never the largest; where nothing is above -inf, it is {-inf, 0}.
LogitTile largest(const float* x, int n) {
  LogitTile best{.max = -std::numeric_limits<float>::infinity(), .index = 0};
  for (int i = 0; i < n; ++i) {
    if (x[i] > best.max) best = {x[i], i};
  }
  return best;
}

void logit_tiles(const float* x, int n, LogitTile* tiles) { fill_tiles(largest, x, n, tiles); }

int argmax(const float* x, int n) { return largest(x, n).index; }

// A tile's sum of exp(x - its maximum), in 16 lanes.
TileSum tile_sum(const float* x, int n) {
  TileSum tile{.max = largest(x, n).max, .sum = 0.0f};
  if (tile.max == -std::numeric_limits<float>::infinity()) return tile;
  LaneSum sum;
  for (int i = 0; i < n; ++i) {
    float& lane = sum.lane[i % LaneSum::kLanes];
    lane = lane + exp_f32(x[i] - tile.max);
  }
  tile.sum = sum.total();
  return tile;
}

double log_sum_exp(const float* x, int n) { return fold_tiles(tile_sum, x, n); }

// Fused: weight * e into its lane. Where e is too low for exp, or NaN, it counts as kExpNever.
ExpSums exp_sums(const float* x, int n, float max, float scale, float* out) {
  LaneSum mass;
  LaneSum exponent;
  for (int i = 0; i < n; ++i) {
    const float exact = (x[i] - max) * scale;
    const float e = exact > kExpNever ? exact : kExpNever;
    out[i] = exp_f32(e);
    float& mass_lane = mass.lane[i % LaneSum::kLanes];
    float& exponent_lane = exponent.lane[i % LaneSum::kLanes];
    mass_lane = mass_lane + out[i];
    exponent_lane = std::fma(out[i], e, exponent_lane);
  }
  return {.mass = mass.total(), .exponent = exponent.total()};
}

int find_between(const float* x, int n, float low, float high, int32_t base, int32_t* out) {
  int found = 0;
  for (int i = 0; i < n; ++i) {
    if (x[i] >= low && x[i] < high) out[found++] = base + i;
  }
  return found;
}

}  // namespace
}  // namespace pagoda::kernels::ref

namespace pagoda::kernels {

void fill_logits_ref(KernelTable& table) {
  table.logit_tiles = ref::logit_tiles;
  table.exp_sums = ref::exp_sums;
  table.find_between = ref::find_between;
  table.softcap = ref::softcap;
  table.argmax = ref::argmax;
  table.log_sum_exp = ref::log_sum_exp;
}

}  // namespace pagoda::kernels
