// kernels/bf16_rule.h over 16 lanes. Include inside a region, after simd.h.

// Sixteen values rounded to bf16, as f32: the low half of every lane is 0. (Multiplying by 1 would flush denormals and quiet
// NaNs too, but compilers drop it.)
PAGODA_SIMD F32 round_bf16(F32 x) {
  const I32 high = splat_i32(static_cast<int32_t>(0xFFFF0000U));
  const I32 bits = bits_of(x);
  const I32 odd = bit_and(shift_right_signed<16>(bits), splat_i32(1));
  const F32 rounded = from_bits(bit_and(add(add(bits, splat_i32(0x7FFF)), odd), high));
  const F32 special = from_bits(bit_and(bits_of(add(x, x)), high));  // infinity, and NaN made quiet
  const F32 magnitude = abs(x);
  const F32 number = select(less(magnitude, splat(__builtin_inff())), rounded, special);
  const F32 none = from_bits(bit_and(bits, splat_i32(INT32_MIN)));
  return select(less(magnitude, splat(0x1p-126F)), none, number);
}
