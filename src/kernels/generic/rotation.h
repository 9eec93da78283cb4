// kernels/rotation.h over 16 lanes.
// Not self-contained: include inside a region, after simd_attention.h.

// One run of kVectors * 16 dims, in registers: every step over all vectors, since one after another they would wait for themselves.
template <int kVectors>
PAGODA_SIMD void rotate_run(const float* x, float factor, float* out) {
  F32 v[kVectors];
  const auto each = [](auto step) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) step(i);
  };
  each([&](int i) __attribute__((always_inline)) { v[i] = butterfly<1>(load(x + i * kLanes)); });
  each([&](int i) __attribute__((always_inline)) { v[i] = butterfly<2>(v[i]); });
  each([&](int i) __attribute__((always_inline)) { v[i] = butterfly<4>(v[i]); });
  each([&](int i) __attribute__((always_inline)) { v[i] = butterfly<8>(v[i]); });
#pragma GCC unroll 4
  for (int distance = 1; distance < kVectors; distance *= 2) {
    each([&](int i) __attribute__((always_inline)) {
      if ((i & distance) != 0) return;
      const F32 low = v[i];
      const F32 high = v[i + distance];
      v[i] = add(low, high);
      v[i + distance] = sub(low, high);
    });
  }
  each([&](int i) __attribute__((always_inline)) { store(out + i * kLanes, mul(v[i], splat(factor))); });
}

// Runs that do not fit the registers: of `run` dims.
inline void rotate_long_run(const float* x, int run, float* out) {
  constexpr int kPart = 16 * kLanes;
  for (int i = 0; i < run; i += kPart) rotate_run<16>(x + i, 1.0f, out + i);
  for (int distance = kPart; distance < run; distance *= 2) {
    for (int first = 0; first < run; first += 2 * distance) {
      for (int i = first; i < first + distance; i += kLanes) {
        const F32 low = load(out + i);
        const F32 high = load(out + i + distance);
        store(out + i, add(low, high));
        store(out + i + distance, sub(low, high));
      }
    }
  }
  const F32 factor = splat(rotation_factor(run));
  for (int i = 0; i < run; i += kLanes) store(out + i, mul(load(out + i), factor));
}

// x [head_dim] into out, which may be x.
inline void rotate(const float* x, int head_dim, float* out) {
  const int run = rotation_run(head_dim);
  const auto each_run = [&](auto n_vectors) __attribute__((always_inline)) {
    constexpr int kVectors = decltype(n_vectors)::value;
    constexpr int kRun = kVectors * kLanes;
    for (int i = 0; i < head_dim; i += kRun) rotate_run<kVectors>(x + i, rotation_factor(kRun), out + i);
  };
  switch (run / kLanes) {
    case 1:
      return each_run(std::integral_constant<int, 1>{});
    case 2:
      return each_run(std::integral_constant<int, 2>{});
    case 4:
      return each_run(std::integral_constant<int, 4>{});
    case 8:
      return each_run(std::integral_constant<int, 8>{});
    case 16:
      return each_run(std::integral_constant<int, 16>{});
    default:
      for (int i = 0; i < head_dim; i += run) rotate_long_run(x + i, run, out + i);
  }
}
