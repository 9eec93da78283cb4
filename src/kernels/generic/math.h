// kernels/math.h over 16 lanes: the same operations in the same order, hence the same bits.
// Not self-contained: include inside a region, after simd.h.

// exp of kCount vectors of x <= kExpHighest (the scores of a softmax, which are at most 0), step by step side by side: one
// after another they would fill the scheduler with steps that wait.
template <int kCount>
PAGODA_SIMD void exp_finite(F32 (&x)[kCount]) {
  const auto each = [](auto step) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) step(i);
  };
  F32 shifted[kCount];
  F32 r[kCount];
  F32 p[kCount];
  each([&](int i) __attribute__((always_inline)) { shifted[i] = fma(x[i], splat(kLog2E), splat(kRoundMagic)); });
  each([&](int i) __attribute__((always_inline)) { p[i] = sub(shifted[i], splat(kRoundMagic)); });
  each([&](int i) __attribute__((always_inline)) { r[i] = fma(p[i], splat(-kLn2High), x[i]); });
  each([&](int i) __attribute__((always_inline)) { r[i] = fma(p[i], splat(-kLn2Low), r[i]); });
  each([&](int i) __attribute__((always_inline)) { p[i] = fma(splat(kExp6), r[i], splat(kExp5)); });
  each([&](int i) __attribute__((always_inline)) { p[i] = fma(p[i], r[i], splat(kExp4)); });
  each([&](int i) __attribute__((always_inline)) { p[i] = fma(p[i], r[i], splat(kExp3)); });
  each([&](int i) __attribute__((always_inline)) { p[i] = fma(p[i], r[i], splat(kExp2)); });
  each([&](int i) __attribute__((always_inline)) { p[i] = add(fma(p[i], mul(r[i], r[i]), r[i]), splat(1.0f)); });
  each([&](int i) __attribute__((always_inline)) {
    p[i] = from_bits(add(bits_of(p[i]), shift_left<23>(bits_of(shifted[i]))));
    x[i] = select(less(x[i], splat(kExpLowest)), zero(), p[i]);
  });
}

PAGODA_SIMD F32 exp_finite(F32 x) {
  F32 one[1] = {x};
  exp_finite(one);
  return one[0];
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
