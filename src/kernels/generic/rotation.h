// kernels/rotation.h over 16 lanes.
// Not self-contained: include inside a region, after simd_attention.h.

// x [head_dim] into out, which may be x.
inline void rotate(const float* x, int head_dim, float* out) {
  for (int i = 0; i < head_dim; i += kLanes) {
    store(out + i, butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(x + i))))));
  }
  const int run = rotation_run(head_dim);
  for (int distance = kLanes; distance < run; distance *= 2) {
    for (int first = 0; first < head_dim; first += 2 * distance) {
      for (int i = first; i < first + distance; i += kLanes) {
        const F32 low = load(out + i);
        const F32 high = load(out + i + distance);
        store(out + i, add(low, high));
        store(out + i + distance, sub(low, high));
      }
    }
  }
  const F32 factor = splat(rotation_factor(run));
  for (int i = 0; i < head_dim; i += kLanes) store(out + i, mul(load(out + i), factor));
}
