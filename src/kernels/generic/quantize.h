// quantize_rows, once for every instruction set. Include inside a region, after simd.h.

// 32 columns: d = max |x| / 127, q = round-half-even(x / d) within +-127, all zero where d is.
PAGODA_SIMD void quantize_cell(const float* x, int8_t* q, float* d, int16_t* sums16) {
  const F32 x0 = load(x);
  const F32 x1 = load(x + kLanes);
  const float scale = reduce_max(max(abs(x0), max(abs(x1), zero()))) / 127.0F;
  *d = scale;
  const Mask usable = less(zero(), splat(scale));
  const auto quantize = [&](F32 v) __attribute__((always_inline)) {
    const F32 scaled = select(usable, div(v, splat(scale)), zero());
    return round_to_i32(max(min(scaled, splat(127.0F)), splat(-127.0F)));
  };
  const I32 q0 = quantize(x0);
  const I32 q1 = quantize(x1);
  store_i8(q, q0);
  store_i8(q + kLanes, q1);
  sums16[0] = static_cast<int16_t>(reduce_add(q0));
  sums16[1] = static_cast<int16_t>(reduce_add(q1));
}

void quantize_rows(const float* x, int ld, Range rows, Range cols, QuantRows out) {
  for (int row = rows.begin; row < rows.end; ++row) {
    const size_t at = static_cast<size_t>(row) * static_cast<size_t>(out.n_cols);
    const float* x_row = x + static_cast<size_t>(row) * static_cast<size_t>(ld);
    for (int col = cols.begin; col < cols.end; col += tensor::kCellCols) {
      const size_t to = at + static_cast<size_t>(col);
      quantize_cell(x_row + col, out.q + to, out.d + to / tensor::kCellCols, out.sums16 + to / 16);
    }
  }
}
