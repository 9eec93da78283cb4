// The rotation of rows that are kept as integers, one scalar at a time: it spreads a few large dims over all, so that one scale does for a
// row (QuaRot, Ashkboos et al. 2024). q and K rotated have the same dot product; O over rotated V is rotated back, once.
// A Walsh-Hadamard transform of each run of P dims, P the largest power of two in head_dim, times 1 / sqrt(P): symmetric and orthonormal,
// hence its own inverse. Butterflies in order of their distance, so that every instruction set gives the same bits. Internal to kernels.
#pragma once

namespace pagoda::kernels {

constexpr int rotation_run(int head_dim) { return head_dim & -head_dim; }
constexpr float rotation_factor(int run) {
  float factor = 1.0f;
  for (; run >= 4; run /= 4) factor *= 0.5f;
  return run == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

// x [head_dim], in place.
inline void rotate(float* x, int head_dim) {
  const int run = rotation_run(head_dim);
  for (int distance = 1; distance < run; distance *= 2) {
    for (int i = 0; i < head_dim; ++i) {
      if ((i & distance) != 0) continue;
      const float low = x[i];
      const float high = x[i + distance];
      x[i] = low + high;
      x[i + distance] = low - high;
    }
  }
  for (int i = 0; i < head_dim; ++i) x[i] *= rotation_factor(run);
}

}  // namespace pagoda::kernels
