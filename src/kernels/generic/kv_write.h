// One token's K and V into a block (ref/attention.cc defines it).
// Not self-contained: include inside a region, after simd.h and generic/int8_rule.h.

// Sixteen values of a head as int8.
PAGODA_SIMD void quantize_16(const float* x, float scale, int8_t* out) {
  store_i8(out, scale == 0.0f ? splat_i32(0) : quantize_i8(load(x), splat(scale)));
}

inline void write_k_int8(const float* k, int head_dim, std::byte* part, uint16_t* scale, int slot) {
  *scale = kv_scale(largest_magnitude(k, head_dim));
  const float s = tensor::f16_to_f32(*scale);
  for (int d = 0; d < head_dim; d += kLanes) {
    int8_t q[kLanes];
    quantize_16(k + d, s, q);
    for (int i = 0; i < kLanes; i += 4) __builtin_memcpy(part + kv::k_index(kv::KvType::kInt8, slot, d + i), q + i, 4);
  }
}

inline void write_v_int8(const float* v, int head_dim, std::byte* part, uint16_t* scale, int slot) {
  *scale = kv_scale(largest_magnitude(v, head_dim));
  const float s = tensor::f16_to_f32(*scale);
  for (int d = 0; d < head_dim; d += kLanes) {
    int8_t q[kLanes];
    quantize_16(v + d, s, q);
    std::byte* to = part + kv::v_index(kv::KvType::kInt8, head_dim, slot, d);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) to[4 * i] = static_cast<std::byte>(q[i]);
  }
}

inline void write_k_bf16(const float* k, int head_dim, std::byte* part, int slot) {
  uint16_t* to = reinterpret_cast<uint16_t*>(part);
  for (int d = 0; d < head_dim; ++d) to[kv::k_index(kv::KvType::kBf16, slot, d)] = tensor::f32_to_bf16(k[d]);
}

inline void write_v_bf16(const float* v, int head_dim, std::byte* part, int slot) {
  uint16_t* to = reinterpret_cast<uint16_t*>(part);
  for (int d = 0; d < head_dim; ++d) to[kv::v_index(kv::KvType::kBf16, head_dim, slot, d)] = tensor::f32_to_bf16(v[d]);
}

inline void kv_write(const float* k, const float* v, int head_dim, const kv::LayerLayout& layer, std::byte* head,
                     int slot) {
  if (layer.format.k == kv::KvType::kInt8) {
    write_k_int8(k, head_dim, head, reinterpret_cast<uint16_t*>(head + layer.k_scales) + slot, slot);
  } else {
    write_k_bf16(k, head_dim, head, slot);
  }
  if (layer.format.v == kv::KvType::kInt8) {
    write_v_int8(v, head_dim, head + layer.v, reinterpret_cast<uint16_t*>(head + layer.v_scales) + slot, slot);
  } else {
    write_v_bf16(v, head_dim, head + layer.v, slot);
  }
}
