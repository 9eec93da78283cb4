// O += w V over a run of tokens, for a register block of rows.
// Not self-contained: include inside a region, after simd_attention.h.
// Fused: w V. What the products are added to is the order: one chain over the tokens a row sees (TokenOrder), two chains
// per block (CellOrder, bf16 arithmetic), or exact integers (QuadOrder, int8 arithmetic over int8 V).

// Tokens [begin, end) of a span, dims [dim, dim + vectors * 16).
struct ValueTask {
  const kv::KvView* view;
  int first_block;  // of the span
  int begin, end;
  int dim;
  const float* weights;  // [rows, kSpanTokens]
  float* out;            // [rows, out_stride], at the first dim of the head
  int out_stride;
  const std::byte* const* ahead;  // [kSpanBlocks]: heads in the next span's blocks, asked for meanwhile
};

inline constexpr int kDimBytes = 4;  // of the tokens that lie side by side
struct Int8Values {
  static constexpr int kTokens = kv::packed_elements(kv::KvType::kInt8);
  // Token `slot`'s sixteen dims from v (the block's V, at the first dim wanted).
  PAGODA_SIMD static F32 get(const std::byte* v, int head_dim, int slot, int vector) {
    const I32 quads = load_i32(v + (slot / kTokens * head_dim + vector * kLanes) * kDimBytes);
    return to_f32(signed_byte(quads, slot % kTokens));
  }
};
struct Bf16Values {
  static constexpr int kTokens = kv::packed_elements(kv::KvType::kBf16);
  PAGODA_SIMD static F32 get(const std::byte* v, int head_dim, int slot, int vector) {
    const I32 pair = load_i32(v + (slot / kTokens * head_dim + vector * kLanes) * kDimBytes);
    if (slot % kTokens == 0) return from_bits(shift_left<16>(pair));
    return from_bits(bit_and(pair, splat_i32(static_cast<int32_t>(0xFFFF0000U))));
  }
};

// The same tokens' V in the next span's block is asked for meanwhile (and its K while scores are taken): memory works
// through all of a span.
template <class Values, int kVectors>
struct Prefetch {
  const std::byte* base;
  size_t row_bytes;  // of Values::kTokens tokens

  PAGODA_SIMD Prefetch(const ValueTask& task, int block) {
    base = task.ahead[block] + task.view->layer.v + task.dim * kDimBytes;
    row_bytes = static_cast<size_t>(task.view->head_dim) * kDimBytes;
    if (task.dim == 0 && task.view->layer.format.v == kv::KvType::kInt8) {
      __builtin_prefetch(task.ahead[block] + task.view->layer.v_scales, 0, 2);
    }
  }
  // Of the bytes of some tokens side by side, each token asks for its share.
  PAGODA_SIMD void token(int slot) const {
    constexpr size_t kShare = kVectors * kLanes * kDimBytes / Values::kTokens;
    const std::byte* at = base + static_cast<size_t>(slot / Values::kTokens) * row_bytes +
                          static_cast<size_t>(slot % Values::kTokens) * kShare;
#pragma GCC unroll 2
    for (size_t i = 0; i < (kShare + 63) / 64; ++i) __builtin_prefetch(at + i * 64, 0, 2);
  }
};

template <class Values, int kRows, int kVectors>
PAGODA_SIMD void accumulate_token(const ValueTask& task, const std::byte* v, int slot, const float* weights,
                                  F32 (&sum)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; i += kValuesAtOnce) {
    // The compiler would keep every row's splat for the next vectors, and spill a sum.
    if (i != 0) asm("" : "+r"(weights));
    constexpr int kCount = std::min(kVectors, kValuesAtOnce);
    F32 values[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) values[j] = Values::get(v, task.view->head_dim, slot, i + j);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 w = splat(weights[r * kSpanTokens]);
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) sum[r][i + j] = fma(w, values[j], sum[r][i + j]);
    }
  }
}

// f32 arithmetic, and int8 over bf16 V: O is one chain over tokens ascending, so a run may be cut anywhere.
struct TokenOrder {
  static constexpr int kChains = 1;
  static constexpr bool kScoresAreDots = false;  // to be multiplied by k_scales
  // Of tokens [token, token + 16) of a row, in the place of its scores.
  PAGODA_SIMD static void store_weights(float* row, int token, F32 w) { store(row + token, w); }

  template <class Values, int kRows, int kVectors>
  static inline void accumulate(const ValueTask& task) {
    F32 sum[kRows][kVectors];
    float* out = task.out + task.dim;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) sum[r][i] = load(out + r * task.out_stride + i * kLanes);
    }
    for (int t = task.begin; t < task.end;) {
      const int block = t / kv::kBlockTokens;
      const std::byte* v = task.view->v(task.first_block + block) + task.dim * kDimBytes;
      const int first = block * kv::kBlockTokens;
      const int last = std::min(task.end, first + kv::kBlockTokens);
      Prefetch<Values, kVectors> prefetch(task, block);
      for (; t < last; ++t) {
        prefetch.token(t - first);
        accumulate_token<Values>(task, v, t - first, task.weights + t, sum);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) store(out + r * task.out_stride + i * kLanes, sum[r][i]);
    }
  }
};

// bf16 arithmetic: per block an even and an odd chain from zero, then O = O + (even + odd), as TDPBF16PS. Runs are whole
// blocks; the weight of a token that a row does not see is 0.
struct CellOrder {
  static constexpr int kChains = 2;
  static constexpr bool kScoresAreDots = false;
  PAGODA_SIMD static void store_weights(float* row, int token, F32 w) { store(row + token, round_bf16(w)); }

  template <class Values, int kRows, int kVectors>
  static inline void accumulate(const ValueTask& task) {
    for (int t = task.begin; t < task.end; t += kv::kBlockTokens) {
      const int block = t / kv::kBlockTokens;
      const std::byte* v = task.view->v(task.first_block + block) + task.dim * kDimBytes;
      Prefetch<Values, kVectors> prefetch(task, block);
      F32 even[kRows][kVectors];
      F32 odd[kRows][kVectors];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) even[r][i] = odd[r][i] = zero();
      }
      for (int slot = 0; slot < kv::kBlockTokens; slot += 2) {
        prefetch.token(slot);
        prefetch.token(slot + 1);
        accumulate_token<Values>(task, v, slot, task.weights + t + slot, even);
        accumulate_token<Values>(task, v, slot + 1, task.weights + t + slot + 1, odd);
      }
      float* out = task.out + task.dim;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r, out += task.out_stride) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
          store(out + i * kLanes, add(load(out + i * kLanes), add(even[r][i], odd[r][i])));
        }
      }
    }
  }
};

// All dims of the head.
template <class Values, class Order, int kRows>
inline void accumulate_dims(ValueTask task) {
  const int head_dim = task.view->head_dim;
  constexpr int kVectors = value_vectors(kRows * Order::kChains);
  task.dim = 0;
  for (; task.dim + kVectors * kLanes <= head_dim; task.dim += kVectors * kLanes) {
    Order::template accumulate<Values, kRows, kVectors>(task);
  }
  for (; task.dim < head_dim; task.dim += kLanes) Order::template accumulate<Values, kRows, 1>(task);
}

// n_rows in [1, kValueRows].
template <class Values, class Order>
inline void accumulate_rows(const ValueTask& task, int n_rows) {
  if (task.begin >= task.end) return;
  switch (n_rows) {
    case 1:
      return accumulate_dims<Values, Order, 1>(task);
    case 2:
      return accumulate_dims<Values, Order, 2>(task);
    case 3:
      return accumulate_dims<Values, Order, 3>(task);
    case 4:
      return accumulate_dims<Values, Order, 4>(task);
    case 5:
      return accumulate_dims<Values, Order, 5>(task);
    case 6:
      return accumulate_dims<Values, Order, 6>(task);
  }
}

// int8 arithmetic over int8 V (int8_rule.h). Weights stay f32 until a row has all of its own (quantize_weights).
struct QuadOrder {
  static constexpr bool kScoresAreDots = false;
  PAGODA_SIMD static void store_weights(float* row, int token, F32 w) { store(row + token, w); }
};
inline constexpr int kQuadTokens = 4;
inline constexpr size_t kWeightQuadBytes = 8;

// As ValueTask; a row's weights are quads at the place of its scores, 0 where it sees nothing. Runs are whole quads.
struct QuadTask {
  const kv::KvView* view;
  int first_block;
  uint32_t blocks;  // others are skipped: they may be gone
  int begin, end;
  int dim;
  const std::byte* weights;
  const float* units;  // [rows]: of the sums
  float* out;
  int out_stride;
  const std::byte* const* ahead;
};

template <int kRows, int kVectors>
PAGODA_SIMD void add_quad(const std::byte* v, const std::byte* weights, WeightedSum (&sum)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; i += kQuadsAtOnce) {
    if (i != 0) asm("" : "+r"(weights));  // as in accumulate_token
    constexpr int kCount = std::min(kVectors, kQuadsAtOnce);
    ValueQuad values[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) values[j] = ValueQuad::at(v + (i + j) * kSumDims * kDimBytes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const WeightQuad w = WeightQuad::at(weights + static_cast<size_t>(r) * kSpanTokens * sizeof(float));
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) sum[r][i + j].add(values[j], w);
    }
  }
}

template <int kRows, int kVectors>
inline void weigh_values(const QuadTask& task) {
  const size_t row_bytes = static_cast<size_t>(task.view->head_dim) * kDimBytes;
  const size_t at_dim = static_cast<size_t>(task.dim) * kDimBytes;
  WeightedSum sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) sum[r][i] = WeightedSum::empty();
  }
  for (int t = task.begin; t < task.end;) {
    const int block = t / kv::kBlockTokens;
    const int last = std::min(task.end, (block + 1) * kv::kBlockTokens);
    if ((task.blocks >> block & 1) == 0) {
      t = last;
      continue;
    }
    const size_t from = static_cast<size_t>(t - block * kv::kBlockTokens) / kQuadTokens * row_bytes + at_dim;
    const std::byte* weights = task.weights + static_cast<size_t>(t) / kQuadTokens * kWeightQuadBytes;
    const std::byte* v = task.view->v(task.first_block + block) + from;
    const std::byte* ahead = task.ahead[block] + task.view->layer.v + from;
    if (task.dim == 0) __builtin_prefetch(task.ahead[block] + task.view->layer.v_scales, 0, 2);
    for (; t < last; t += kQuadTokens, v += row_bytes, ahead += row_bytes, weights += kWeightQuadBytes) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors * kSumDims * kDimBytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
      add_quad(v, weights, sum);
    }
  }
  float* out = task.out + task.dim;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) sum[r][i].store(out + r * task.out_stride + i * kSumDims, task.units[r]);
  }
}

template <int kRows>
inline void weigh_dims(QuadTask task) {
  constexpr int kVectors = weighted_vectors(kRows);
  const int head_dim = task.view->head_dim;
  for (; task.dim + kVectors * kSumDims <= head_dim; task.dim += kVectors * kSumDims)
    weigh_values<kRows, kVectors>(task);
  for (; task.dim < head_dim; task.dim += kSumDims) weigh_values<kRows, 1>(task);
}

// n_rows in [1, kValueRows].
inline void weigh_rows(const QuadTask& task, int n_rows) {
  switch (n_rows) {
    case 1:
      return weigh_dims<1>(task);
    case 2:
      return weigh_dims<2>(task);
    case 3:
      return weigh_dims<3>(task);
    case 4:
      return weigh_dims<4>(task);
    case 5:
      return weigh_dims<5>(task);
    case 6:
      return weigh_dims<6>(task);
  }
}
