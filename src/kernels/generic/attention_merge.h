// Partial results of rows: folded, finished (ref/attention.cc defines it).
// Not self-contained: include inside a region, after generic/math.h and generic/rotation.h.

inline void attention_merge(float* into, const float* next, int n_rows, int head_dim) {
  const int size = partial_floats(head_dim);
  for (int r = 0; r < n_rows; ++r, into += size, next += size) {
    if (next[0] == kMinusInfinity) continue;
    if (into[0] == kMinusInfinity) {
      __builtin_memcpy(into, next, static_cast<size_t>(size) * sizeof(float));
      continue;
    }
    const float m = into[0] > next[0] ? into[0] : next[0];
    // The factor of the larger maximum is exp(0), exactly 1.
    const bool into_is_larger = into[0] > next[0];
    const F32 factor = exp_finite(splat((into_is_larger ? next[0] : into[0]) - m));
    const F32 a = into_is_larger ? splat(1.0f) : factor;
    const F32 b = into_is_larger ? factor : splat(1.0f);
    into[0] = m;
    store_first(into + 1, fma(load_first(next + 1, 1), b, mul(load_first(into + 1, 1), a)), 1);
    for (int d = kPartialHeader; d < size; d += kLanes) {
      store(into + d, fma(load(next + d), b, mul(load(into + d), a)));
    }
  }
}

inline void attention_finish(const AttentionArgs& args, const float* partial) {
  for (int r = 0; r < args.n_rows; ++r, partial += partial_floats(args.kv.head_dim)) {
    float* out = args.out + args.row_offset[r];
    const F32 sum = splat(partial[1] == 0.0f ? 1.0f : partial[1]);
    for (int d = 0; d < args.kv.head_dim; d += kLanes) store(out + d, div(load(partial + kPartialHeader + d), sum));
    if (kv::is_scaled(args.kv.layer.format.v)) rotate(out, args.kv.head_dim, out);
  }
}
