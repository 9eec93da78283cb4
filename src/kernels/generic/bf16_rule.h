// kernels/bf16_rule.h over 16 lanes; the result stays f32.
// Not self-contained: include inside a region, after simd.h.

PAGODA_SIMD F32 round_bf16(F32 x) {
  const I32 high = splat_i32(static_cast<int32_t>(0xFFFF0000U));
  const I32 bits = bits_of(x);
  const I32 is_odd = bit_and(shift_right_signed<16>(bits), splat_i32(1));
  const F32 rounded = from_bits(bit_and(add(add(bits, splat_i32(0x7FFF)), is_odd), high));
  const F32 special = from_bits(bit_and(bits_of(add(x, x)), high));  // infinity, and NaN made quiet
  const F32 magnitude = abs(x);
  const F32 number = select(less(magnitude, splat(std::numeric_limits<float>::infinity())), rounded, special);
  const F32 none = from_bits(bit_and(bits, splat_i32(INT32_MIN)));
  return select(less(magnitude, splat(kSmallestNormal)), none, number);
}
