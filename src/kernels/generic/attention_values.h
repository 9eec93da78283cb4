// O += w V over a run of tokens, for a register block of rows.
// Not self-contained: include inside a region, after simd_attention.h.
// Fused: w V. What the products are added to is the order: one chain over the tokens a row sees (TokenOrder), two chains
// per block (CellOrder, bf16 arithmetic), or exact integers (QuadOrder, int8
// arithmetic over int8 and int4 V).

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

// V of a type: at `offset` from the block's V begin the cells of sixteen dims; get() gives those of token `slot`, `vector` sixteens on.
template <kv::KvType kType>
struct WideRows {
  static constexpr int kTokens = kv::v_packed_tokens(kType);
  static constexpr size_t kVectorBytes = kLanes * kDimBytes;
  PAGODA_SIMD static size_t row_bytes(int head_dim) { return static_cast<size_t>(head_dim) * kDimBytes; }
  PAGODA_SIMD static size_t offset(int dim) { return static_cast<size_t>(dim) * kDimBytes; }
  PAGODA_SIMD static int first_vector(int) { return 0; }
  PAGODA_SIMD static I32 cells(const std::byte* v, int head_dim, int slot, int vector) {
    return load_i32(v + (slot / kTokens * head_dim + vector * kLanes) * kDimBytes);
  }
};
struct Int8Values : WideRows<kv::KvType::kInt8> {
  PAGODA_SIMD static F32 get(const std::byte* v, int head_dim, int slot, int vector) {
    return to_f32(signed_byte(cells(v, head_dim, slot, vector), slot % kTokens));
  }
};
struct Bf16Values : WideRows<kv::KvType::kBf16> {
  PAGODA_SIMD static F32 get(const std::byte* v, int head_dim, int slot, int vector) {
    const I32 pair = cells(v, head_dim, slot, vector);
    if (slot % kTokens == 0) return from_bits(shift_left<16>(pair));
    return from_bits(bit_and(pair, splat_i32(static_cast<int32_t>(0xFFFF0000U))));
  }
};
// Sixteen cells hold two vectors.
struct Int4Values {
  static constexpr int kTokens = kv::v_packed_tokens(kv::KvType::kInt4);
  static constexpr size_t kVectorBytes = kLanes * kDimBytes / 2;
  PAGODA_SIMD static size_t row_bytes(int head_dim) {
    return static_cast<size_t>(kv::v_row_cells(kv::KvType::kInt4, head_dim)) * kDimBytes;
  }
  PAGODA_SIMD static size_t offset(int dim) { return static_cast<size_t>(dim / (2 * kLanes) * kLanes) * kDimBytes; }
  PAGODA_SIMD static int first_vector(int dim) { return dim / kLanes % 2; }
  PAGODA_SIMD static F32 get(const std::byte* v, int head_dim, int slot, int vector) {
    const std::byte* row = v + static_cast<size_t>(slot / kTokens) * row_bytes(head_dim);
    const I32 code = nibble(load_i32(row + vector / 2 * kLanes * kDimBytes), slot % kTokens * 8 + vector % 2 * 4);
    return to_f32(sub(shift_left<1>(code), splat_i32(15)));
  }
};

// The same tokens' V in the next span's block is asked for meanwhile (and its K while scores are taken): memory works
// through all of a span.
template <class Values, int kVectors>
struct Prefetch {
  const std::byte* base;
  size_t row_bytes;  // of Values::kTokens tokens

  PAGODA_SIMD Prefetch(const ValueTask& task, int block) {
    base = task.ahead[block] + task.view->layer.v + Values::offset(task.dim);
    row_bytes = Values::row_bytes(task.view->head_dim);
    if (task.dim == 0 && kv::is_scaled(task.view->layer.format.v)) {
      __builtin_prefetch(task.ahead[block] + task.view->layer.v_scales, 0, 2);
    }
  }
  // Of the bytes of some tokens side by side, each token asks for its share.
  PAGODA_SIMD void token(int slot) const {
    constexpr size_t kShare = kVectors * Values::kVectorBytes / Values::kTokens;
    const std::byte* at = base + static_cast<size_t>(slot / Values::kTokens) * row_bytes +
                          static_cast<size_t>(slot % Values::kTokens) * kShare;
#pragma GCC unroll 2
    for (size_t i = 0; i < (kShare + 63) / 64; ++i) __builtin_prefetch(at + i * 64, 0, 2);
  }
};

template <class Values, int kRows, int kVectors>
PAGODA_SIMD void accumulate_token(const ValueTask& task, const std::byte* v, int slot, const float* weights,
                                  F32 (&sum)[kRows][kVectors]) {
  const int first = Values::first_vector(task.dim);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; i += kValuesAtOnce) {
    // The compiler would keep every row's splat for the next vectors, and spill a sum.
    if (i != 0) asm("" : "+r"(weights));
    constexpr int kCount = std::min(kVectors, kValuesAtOnce);
    F32 values[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; ++j) values[j] = Values::get(v, task.view->head_dim, slot, first + i + j);
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
      const std::byte* v = task.view->v(task.first_block + block) + Values::offset(task.dim);
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
      const std::byte* v = task.view->v(task.first_block + block) + Values::offset(task.dim);
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

// int8 arithmetic over int8 and int4 V (int8_rule.h). Weights stay f32 until a row has all of its own (quantize_weights).
template <class Quads>
struct QuadOrder {
  static constexpr int kParts = Quads::kParts;
  static constexpr bool kScoresAreDots = false;
  PAGODA_SIMD static void store_weights(float* row, int token, F32 w) { store(row + token, w); }
};
template <class Order>
inline constexpr bool kIsQuadOrder = false;
template <class Quads>
inline constexpr bool kIsQuadOrder<QuadOrder<Quads>> = true;
inline constexpr int kQuadTokens = 4;
inline constexpr size_t kWeightQuadBytes = 8;

// As ValueTask; a row's weights are quads at the place of its scores, 0 where it sees nothing. Runs are whole quads.
struct QuadTask {
  const kv::KvView* view;
  int first_block;
  uint32_t blocks;  // others are skipped: they may be gone
  int begin, end;
  int load;  // of a row's kSumDims cells each, the first wanted
  const std::byte* weights;
  const float* units;     // [rows]: of the sums
  const int32_t* starts;  // [rows]: int4 only
  float* out;
  int out_stride;
  const std::byte* const* ahead;
};

// What kSumDims cells of a type hold: kParts quads, and where the dims of each begin.
struct Int8Quads {
  static constexpr int kParts = 1;
  PAGODA_SIMD static int row_cells(int head_dim) { return head_dim; }
  PAGODA_SIMD static int dim(int load, int) { return load * kSumDims; }
  PAGODA_SIMD static void get(const std::byte* v, ValueQuad* parts) { parts[0] = ValueQuad::at(v); }
  PAGODA_SIMD static void store(const WeightedSum& sum, const QuadTask& task, int row, float* to) {
    sum.store(to, task.units[row]);
  }
};
struct Int4Quads {
  static constexpr int kParts = 2;
  PAGODA_SIMD static int row_cells(int head_dim) { return kv::v_row_cells(kv::KvType::kInt4, head_dim); }
  PAGODA_SIMD static int dim(int load, int part) {
    const int cell = load * kSumDims;
    return cell / kLanes * 2 * kLanes + cell % kLanes + part * kLanes;
  }
  PAGODA_SIMD static void get(const std::byte* v, ValueQuad* parts) {
    const ValueNibbles codes = ValueNibbles::at(v);
    parts[0] = codes.low;
    parts[1] = codes.high;
  }
  PAGODA_SIMD static void store(const WeightedSum& sum, const QuadTask& task, int row, float* to) {
    sum.store_doubled(to, task.units[row], task.starts[row]);
  }
};

template <class Quads, int kRows, int kSums>
PAGODA_SIMD void add_quad(const std::byte* v, const std::byte* weights, WeightedSum (&sum)[kRows][kSums]) {
  constexpr int kCount = std::max(std::min(kSums, kQuadsAtOnce), Quads::kParts);
#pragma GCC unroll 4
  for (int i = 0; i < kSums; i += kCount) {
    if (i != 0) asm("" : "+r"(weights));  // as in accumulate_token
    ValueQuad values[kCount];
#pragma GCC unroll 4
    for (int j = 0; j < kCount; j += Quads::kParts)
      Quads::get(v + (i + j) / Quads::kParts * kSumDims * kDimBytes, values + j);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const WeightQuad w = WeightQuad::at(weights + static_cast<size_t>(r) * kSpanTokens * sizeof(float));
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) sum[r][i + j].add(values[j], w);
    }
  }
}

template <class Quads, int kRows, int kSums>
PAGODA_SIMD void store_sums(const QuadTask& task, const WeightedSum (&sum)[kRows][kSums]) {
#pragma GCC unroll 4
  for (int i = 0; i < kSums; ++i) {
    const int dim = Quads::dim(task.load + i / Quads::kParts, i % Quads::kParts);
    if (Quads::kParts > 1 && dim >= task.view->head_dim) continue;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) Quads::store(sum[r][i], task, r, task.out + r * task.out_stride + dim);
  }
}

template <class Quads, int kRows, int kLoads>
inline void weigh_values(const QuadTask& task) {
  constexpr int kSums = kLoads * Quads::kParts;
  const size_t row_bytes = static_cast<size_t>(Quads::row_cells(task.view->head_dim)) * kDimBytes;
  const size_t at_load = static_cast<size_t>(task.load) * kSumDims * kDimBytes;
  WeightedSum sum[kRows][kSums];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) sum[r][i] = WeightedSum::empty();
  }
  for (int t = task.begin; t < task.end;) {
    const int block = t / kv::kBlockTokens;
    const int last = std::min(task.end, (block + 1) * kv::kBlockTokens);
    if ((task.blocks >> block & 1) == 0) {
      t = last;
      continue;
    }
    const size_t from = static_cast<size_t>(t - block * kv::kBlockTokens) / kQuadTokens * row_bytes + at_load;
    const std::byte* weights = task.weights + static_cast<size_t>(t) / kQuadTokens * kWeightQuadBytes;
    const std::byte* v = task.view->v(task.first_block + block) + from;
    const std::byte* ahead = task.ahead[block] + task.view->layer.v + from;
    if (task.load == 0) __builtin_prefetch(task.ahead[block] + task.view->layer.v_scales, 0, 2);
    for (; t < last; t += kQuadTokens, v += row_bytes, ahead += row_bytes, weights += kWeightQuadBytes) {
#pragma GCC unroll 4
      for (int i = 0; i < kLoads * kSumDims * kDimBytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
      add_quad<Quads>(v, weights, sum);
    }
  }
  store_sums<Quads>(task, sum);
}

template <class Quads, int kRows>
inline void weigh_dims(QuadTask task) {
  constexpr int kLoads = weighted_vectors(kRows) / Quads::kParts;
  const int n_loads = Quads::row_cells(task.view->head_dim) / kSumDims;
  for (; task.load + kLoads <= n_loads; task.load += kLoads) weigh_values<Quads, kRows, kLoads>(task);
  for (; task.load < n_loads; ++task.load) weigh_values<Quads, kRows, 1>(task);
}

// n_rows in [1, kValueRows].
template <class Quads>
inline void weigh_rows(const QuadTask& task, int n_rows) {
  switch (n_rows) {
    case 1:
      return weigh_dims<Quads, 1>(task);
    case 2:
      return weigh_dims<Quads, 2>(task);
    case 3:
      return weigh_dims<Quads, 3>(task);
    case 4:
      return weigh_dims<Quads, 4>(task);
    case 5:
      return weigh_dims<Quads, 5>(task);
    case 6:
      return weigh_dims<Quads, 6>(task);
  }
}
