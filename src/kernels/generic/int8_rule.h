// kernels/int8_rule.h over 16 lanes.
// Not self-contained: include inside a region, after simd.h.

// The largest |x| of n values, n % 16 == 0.
PAGODA_SIMD float largest_magnitude(const float* x, int n) {
  F32 amax = zero();
  for (int i = 0; i < n; i += kLanes) amax = max(abs(load(x + i)), amax);
  return reduce_max(amax);
}

// Sixteen values over a scale that is not 0.
PAGODA_SIMD I32 quantize_i8(F32 x, F32 scale) {
  const F32 q = min(max(div(x, scale), splat(-kInt8Max)), splat(kInt8Max));
  return round_to_i32(q);
}
PAGODA_SIMD I32 quantize_i4(F32 x, F32 scale) {
  const F32 u = mul(add(div(x, scale), splat(kInt4Max)), splat(0.5f));
  return round_to_i32(min(max(u, zero()), splat(kInt4Max)));
}
