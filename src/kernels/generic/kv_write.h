// One token's K and V into a block (ref/attention.cc defines it).
// Not self-contained: include inside a region, after generic/int8_rule.h and generic/rotation.h.

// Sixteen values of a head as int8.
PAGODA_SIMD void quantize_16(const float* x, float scale, int8_t* out) {
  store_i8(out, scale == 0.0f ? splat_i32(0) : quantize_i8(load(x), splat(scale)));
}

inline void write_k_int8(const float* k, int head_dim, std::byte* part, uint16_t* scale, int slot) {
  *scale = kv_scale(largest_magnitude(k, head_dim), kInt8Max);
  const float s = tensor::f16_to_f32(*scale);
  for (int d = 0; d < head_dim; d += kLanes) {
    int8_t q[kLanes];
    quantize_16(k + d, s, q);
    for (int i = 0; i < kLanes; i += 4) __builtin_memcpy(part + kv::k_index(kv::KvType::kInt8, slot, d + i), q + i, 4);
  }
}

inline void write_v_int8(const float* v, int head_dim, std::byte* part, uint16_t* scale, int slot) {
  *scale = kv_scale(largest_magnitude(v, head_dim), kInt8Max);
  const float s = tensor::f16_to_f32(*scale);
  for (int d = 0; d < head_dim; d += kLanes) {
    int8_t q[kLanes];
    quantize_16(v + d, s, q);
    std::byte* to = part + kv::v_index(kv::KvType::kInt8, head_dim, slot, d);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) to[4 * i] = static_cast<std::byte>(q[i]);
  }
}

// A row's codes, and its scale.
PAGODA_SIMD uint16_t int4_codes(const float* x, int head_dim, uint8_t* codes) {
  const uint16_t scale = kv_scale(largest_magnitude(x, head_dim), kInt4Max);
  const float s = tensor::f16_to_f32(scale);
  for (int d = 0; d < head_dim; d += kLanes) {
    store_i8(codes + d, s == 0.0f ? splat_i32(0) : quantize_i4(load(x + d), splat(s)));
  }
  return scale;
}

inline void write_k_int4(const float* k, int head_dim, std::byte* part, uint16_t* scale, int slot) {
  uint8_t codes[kv::kMaxHeadDim];
  *scale = int4_codes(k, head_dim, codes);
  for (int d = 0; d < head_dim; d += 8) {
    uint32_t cell[2];
    __builtin_memcpy(cell, codes + d, sizeof(cell));
    cell[0] |= cell[1] << 4;
    __builtin_memcpy(part + kv::k_index(kv::KvType::kInt4, slot, d) / 2, cell, sizeof(cell[0]));
  }
}

inline void write_v_int4(const float* v, int head_dim, std::byte* part, uint16_t* scale, int slot) {
  uint8_t codes[kv::kMaxHeadDim + kLanes];
  *scale = int4_codes(v, head_dim, codes);
  store_i8(codes + head_dim, splat_i32(0));  // the last group's high halves, where it has none
  for (int d = 0; d < head_dim; d += 32) {
    std::byte* to = part + kv::v_index(kv::KvType::kInt4, head_dim, slot, d) / 2;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) to[4 * i] = static_cast<std::byte>(codes[d + i] | codes[d + 16 + i] << 4);
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

// A row as integers hold it, rotated into `to`; as it is for bf16.
PAGODA_SIMD const float* row_to_keep(kv::KvType type, const float* x, int head_dim, float* to) {
  if (!kv::is_scaled(type)) return x;
  rotate(x, head_dim, to);
  return to;
}

inline void kv_write(const float* k, const float* v, int head_dim, const kv::LayerLayout& layer, std::byte* head,
                     int slot) {
  float rotated_k[kv::kMaxHeadDim];
  float rotated_v[kv::kMaxHeadDim];
  k = row_to_keep(layer.format.k, k, head_dim, rotated_k);
  v = row_to_keep(layer.format.v, v, head_dim, rotated_v);
  auto* k_scale = reinterpret_cast<uint16_t*>(head + layer.k_scales) + slot;
  auto* v_scale = reinterpret_cast<uint16_t*>(head + layer.v_scales) + slot;
  switch (layer.format.k) {
    case kv::KvType::kBf16:
      write_k_bf16(k, head_dim, head, slot);
      break;
    case kv::KvType::kInt8:
      write_k_int8(k, head_dim, head, k_scale, slot);
      break;
    case kv::KvType::kInt4:
      write_k_int4(k, head_dim, head, k_scale, slot);
      break;
  }
  switch (layer.format.v) {
    case kv::KvType::kBf16:
      write_v_bf16(v, head_dim, head + layer.v, slot);
      break;
    case kv::KvType::kInt8:
      write_v_int8(v, head_dim, head + layer.v, v_scale, slot);
      break;
    case kv::KvType::kInt4:
      write_v_int4(v, head_dim, head + layer.v, v_scale, slot);
      break;
  }
}
