// kernels/math.h over 16 lanes: the same operations in the same order, hence the same bits.
// Not self-contained: include inside a region, after simd.h.

// exp of x <= kExpHighest: the scores of a softmax, which are at most 0.
PAGODA_SIMD F32 exp_finite(F32 x) {
  const F32 magic = splat(kRoundMagic);
  const F32 shifted = fma(x, splat(kLog2E), magic);
  const F32 n = sub(shifted, magic);
  F32 r = fma(n, splat(-kLn2High), x);
  r = fma(n, splat(-kLn2Low), r);
  F32 p = fma(splat(kExp6), r, splat(kExp5));
  p = fma(p, r, splat(kExp4));
  p = fma(p, r, splat(kExp3));
  p = fma(p, r, splat(kExp2));
  p = add(fma(p, mul(r, r), r), splat(1.0f));
  p = from_bits(add(bits_of(p), shift_left<23>(bits_of(shifted))));
  return select(less(x, splat(kExpLowest)), zero(), p);
}

PAGODA_SIMD F32 exp(F32 x) {
  return select(greater(x, splat(kExpHighest)), splat(std::numeric_limits<float>::infinity()), exp_finite(x));
}

PAGODA_SIMD F32 tanh(F32 x) {
  const F32 magnitude = abs(x);
  const F32 z = mul(x, x);
  F32 q = fma(splat(kTanh11), z, splat(kTanh9));
  q = fma(q, z, splat(kTanh7));
  q = fma(q, z, splat(kTanh5));
  q = fma(q, z, splat(kTanh3));
  const F32 small = fma(mul(x, z), q, x);
  const F32 one = splat(1.0f);
  const F32 large = sub(one, div(splat(2.0f), add(exp(add(magnitude, magnitude)), one)));
  const I32 sign = bit_and(bits_of(x), splat_i32(INT32_MIN));
  return select(less(magnitude, splat(kTanhSmall)), small, from_bits(bit_or(bits_of(large), sign)));
}

PAGODA_SIMD F32 silu(F32 x) { return div(x, add(splat(1.0f), exp(sub(zero(), x)))); }

PAGODA_SIMD F32 gelu_tanh(F32 x) {
  const F32 cubic = mul(splat(kGeluCubic), mul(x, mul(x, x)));
  const F32 inner = mul(splat(kSqrt2OverPi), add(x, cubic));
  return mul(mul(splat(0.5f), x), add(splat(1.0f), tanh(inner)));
}

PAGODA_SIMD F32 softcap(F32 x, F32 cap) { return mul(cap, tanh(div(x, cap))); }
