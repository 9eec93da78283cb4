// Rows of activations over 16 lanes (ref/rows.cc defines them).
// Not self-contained: include inside a region, after simd.h and generic/math.h.

PAGODA_SIMD const float* row_of(const float* x, int ld, int row) { return x + static_cast<ptrdiff_t>(row) * ld; }
PAGODA_SIMD float* row_of(float* x, int ld, int row) { return x + static_cast<ptrdiff_t>(row) * ld; }

// out[i] = op(a[i]) or op(a[i], b[i]) for one row; out may be a or b.
template <class Op>
inline void map_row(const Op& op, const float* a, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, op(load(a + i)));
  if (i < n) store_first(out + i, op(load_first(a + i, n - i)), n - i);
}
template <class Op>
inline void map_row(const Op& op, const float* a, const float* b, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, op(load(a + i), load(b + i)));
  if (i < n) store_first(out + i, op(load_first(a + i, n - i), load_first(b + i, n - i)), n - i);
}

struct AddOp {
  PAGODA_SIMD F32 operator()(F32 a, F32 b) const { return add(a, b); }
};
struct ScaleOp {
  F32 factor;
  PAGODA_SIMD F32 operator()(F32 a) const { return mul(a, factor); }
};
struct NormOp {
  F32 inverse;
  PAGODA_SIMD F32 operator()(F32 x, F32 weight) const { return mul(mul(x, inverse), weight); }
};
struct SiluOp {
  PAGODA_SIMD F32 operator()(F32 gate, F32 up) const { return mul(silu(gate), up); }
};
struct GeluTanhOp {
  PAGODA_SIMD F32 operator()(F32 gate, F32 up) const { return mul(gelu_tanh(gate), up); }
};
inline void rms_norm(const float* x, int ld_x, const float* weight, float eps, int n_cols, Range rows, float* out,
                     int ld_out) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* in = row_of(x, ld_x, r);
    F32 squares = zero();
    int i = 0;
    for (; i + kLanes <= n_cols; i += kLanes) squares = fma(load(in + i), load(in + i), squares);
    if (i < n_cols) squares = fma(load_first(in + i, n_cols - i), load_first(in + i, n_cols - i), squares);
    const float mean = reduce_add(squares) / static_cast<float>(n_cols);
    const float inverse = 1.0f / std::sqrt(mean + eps);
    map_row(NormOp{splat(inverse)}, in, weight, n_cols, row_of(out, ld_out, r));
  }
}

inline void add_rows(float* x, int ld_x, const float* y, int ld_y, int n_cols, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    float* to = row_of(x, ld_x, r);
    map_row(AddOp{}, to, row_of(y, ld_y, r), n_cols, to);
  }
}

inline void add_bias(float* x, int ld, const float* bias, int n_cols, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) map_row(AddOp{}, row_of(x, ld, r), bias, n_cols, row_of(x, ld, r));
}

inline void scale(float* x, int ld, float factor, int n_cols, Range rows) {
  const ScaleOp op{splat(factor)};
  for (int r = rows.begin; r < rows.end; ++r) map_row(op, row_of(x, ld, r), n_cols, row_of(x, ld, r));
}

template <class Op>
inline void gated(const float* gate, const float* up, int ld_in, int n_cols, Range rows, float* out, int ld_out) {
  for (int r = rows.begin; r < rows.end; ++r) {
    map_row(Op{}, row_of(gate, ld_in, r), row_of(up, ld_in, r), n_cols, row_of(out, ld_out, r));
  }
}

inline void rope_adjacent(float* x, int ld, int n_heads, int head_dim, int rope_dim, const float* table,
                          const int32_t* position, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* angles = row_of(table, rope_dim, position[r]);
    float* row = row_of(x, ld, r);
    int i = 0;
    for (; i + kLanes <= rope_dim; i += kLanes) {
      const F32 both = load(angles + i);
      const F32 cos = duplicate_even(both);
      const F32 sin = duplicate_odd(both);
      for (int h = 0; h < n_heads; ++h) {
        float* at = row + h * head_dim + i;
        const F32 old = load(at);
        store(at, subtract_add(mul(old, cos), mul(swap_pairs(old), sin)));
      }
    }
    for (; i < rope_dim; i += 2) {
      for (int h = 0; h < n_heads; ++h) {
        float* at = row + h * head_dim + i;
        rotate_pair(at, at + 1, angles + i);
      }
    }
  }
}

inline void rope_halves(float* x, int ld, int n_heads, int head_dim, int rope_dim, const float* table,
                        const int32_t* position, Range rows) {
  const int half = rope_dim / 2;
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* angles = row_of(table, rope_dim, position[r]);
    float* row = row_of(x, ld, r);
    int i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F32 low = load(angles + 2 * i);
      const F32 high = load(angles + 2 * i + kLanes);
      const F32 cos = even_lanes(low, high);
      const F32 sin = odd_lanes(low, high);
      for (int h = 0; h < n_heads; ++h) {
        float* at = row + h * head_dim + i;
        const F32 a = load(at);
        const F32 b = load(at + half);
        store(at, sub(mul(a, cos), mul(b, sin)));
        store(at + half, add(mul(b, cos), mul(a, sin)));
      }
    }
    for (; i < half; ++i) {
      for (int h = 0; h < n_heads; ++h) {
        float* at = row + h * head_dim + i;
        rotate_pair(at, at + half, angles + 2 * i);
      }
    }
  }
}
