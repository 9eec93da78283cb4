// Scores of rows against one block: all rows of a register block share each load of K.
// Not self-contained: include inside a region, after simd_attention.h.
// score = dot * (amount * s_k); amount is the row's (attention.h). The dot is exact in int8, an fma chain over dims
// ascending in f32; in bf16 per 32 dims an even and an odd fma chain from zero, then dot = dot + (even + odd).

// Where one register block reads and writes.
struct ScoreTask {
  const std::byte* k;  // the block's K
  int head_dim;
  const float* k_scales;      // [32]
  const int8_t* q8;           // [rows, head_dim]
  const int32_t* sum_starts;  // [rows]: what integer sums begin with, or end with (int4)
  const float* const* q;      // [rows][head_dim]
  const float* amounts;       // [rows]
  float* scores;              // [rows, kSpanTokens]
  float* maxima;              // [rows, 16]: takes the scores in; null if they are not the final ones
};

// How the integers of int8 arithmetic come out of 32 bits of each token: kDims dims of int8 or int4 K.
struct Int8Codes {
  using Keys = KeyQuads;
  static constexpr int kDims = 4;
  PAGODA_SIMD static Keys keys(I32 words) { return key_quads(words); }
  PAGODA_SIMD static QuadSums begin(int32_t start) { return QuadSums::from(start); }
  PAGODA_SIMD static F32 end(const QuadSums& sum, int32_t) { return sum.total(); }
};
struct Int4Codes {
  using Keys = KeyNibbles;
  static constexpr int kDims = 8;
  PAGODA_SIMD static Keys keys(I32 words) { return KeyNibbles::from(words); }
  PAGODA_SIMD static QuadSums begin(int32_t) { return QuadSums::from(0); }
  PAGODA_SIMD static F32 end(const QuadSums& sum, int32_t start) { return sum.doubled(start); }
};

template <class Codes>
struct IntKeys {
  static constexpr int kMaxRows = kScoreRows;
  static constexpr int kVectors = kScoreVectors;

  template <int kRows, int kVectors>
  PAGODA_SIMD static void dots(const ScoreTask& task, int token, F32 (&out)[kRows][kVectors]) {
    QuadSums sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Codes::begin(task.sum_starts[r]);
    }
    const std::byte* k = task.k + token * 4;
    int d = 0;
    do {
      typename Codes::Keys keys[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) keys[v] = Codes::keys(load_i32(k + v * 64));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[r][v].add(keys[v], task.q8 + r * task.head_dim + d);
      }
      k += kv::kBlockTokens * 4;
      d += Codes::kDims;
    } while (d < task.head_dim);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) out[r][v] = Codes::end(sum[r][v], task.sum_starts[r]);
    }
  }
};
using Int8Keys = IntKeys<Int8Codes>;
using Int4Keys = IntKeys<Int4Codes>;

// f32 queries over widened K: kPerWord dims are packed in each token's 32 bits.
struct WidenInt8 {
  static constexpr int kPerWord = 4;
  template <int kIndex>
  PAGODA_SIMD static F32 get(I32 words) {
    return to_f32(shift_right_signed<24>(shift_left<24 - 8 * kIndex>(words)));
  }
};
struct WidenInt4 {
  static constexpr int kPerWord = 8;
  template <int kIndex>
  PAGODA_SIMD static F32 get(I32 words) {
    constexpr int kShift = kIndex % 4 * 8 + kIndex / 4 * 4;
    const I32 code = bit_and(shift_right_signed<kShift>(words), splat_i32(15));
    return to_f32(sub(shift_left<1>(code), splat_i32(15)));
  }
};
struct WidenBf16 {
  static constexpr int kPerWord = 2;
  template <int kIndex>
  PAGODA_SIMD static F32 get(I32 words) {
    if constexpr (kIndex == 0) return from_bits(shift_left<16>(words));
    return from_bits(bit_and(words, splat_i32(static_cast<int32_t>(0xFFFF0000U))));
  }
};

template <class Widener>
struct F32Keys {
  static constexpr int kMaxRows = kScoreRows;
  static constexpr int kVectors = kScoreVectors;

  template <int kIndex, int kRows, int kVectors>
  PAGODA_SIMD static void step(const ScoreTask& task, int dim, const I32 (&words)[kVectors],
                               F32 (&sum)[kRows][kVectors]) {
    F32 keys[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) keys[v] = Widener::template get<kIndex>(words[v]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 q = splat(task.q[r][dim + kIndex]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(q, keys[v], sum[r][v]);
    }
  }

  template <int kRows, int kVectors>
  PAGODA_SIMD static void dots(const ScoreTask& task, int token, F32 (&sum)[kRows][kVectors]) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
    }
    const std::byte* k = task.k + token * 4;
    for (int d = 0; d < task.head_dim; d += Widener::kPerWord, k += kv::kBlockTokens * 4) {
      I32 words[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) words[v] = load_i32(k + v * 64);
      step<0>(task, d, words, sum);
      step<1>(task, d, words, sum);
      if constexpr (Widener::kPerWord >= 4) {
        step<2>(task, d, words, sum);
        step<3>(task, d, words, sum);
      }
      if constexpr (Widener::kPerWord == 8) {
        step<4>(task, d, words, sum);
        step<5>(task, d, words, sum);
        step<6>(task, d, words, sum);
        step<7>(task, d, words, sum);
      }
    }
  }
};

// bf16 queries (rounded, kept as f32) over widened K.
template <class Widener>
struct Bf16Keys {
  static constexpr int kMaxRows = kBf16ScoreRows;
  static constexpr int kVectors = 1;
  static constexpr int kCellDims = 32;

  template <int kIndex, int kRows>
  PAGODA_SIMD static void step(const ScoreTask& task, int dim, I32 words, F32 (&sum)[kRows]) {
    const F32 key = Widener::template get<kIndex>(words);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[r] = fma(splat(task.q[r][dim + kIndex]), key, sum[r]);
  }

  template <int kRows>
  PAGODA_SIMD static void dots(const ScoreTask& task, int token, F32 (&dot)[kRows][1]) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) dot[r][0] = zero();
    const std::byte* k = task.k + token * 4;
    for (int cell = 0; cell < task.head_dim; cell += kCellDims) {
      F32 even[kRows];
      F32 odd[kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) even[r] = odd[r] = zero();
      const int end = std::min(cell + kCellDims, task.head_dim);
      for (int d = cell; d < end; d += Widener::kPerWord, k += kv::kBlockTokens * 4) {
        const I32 words = load_i32(k);
        step<0>(task, d, words, even);
        step<1>(task, d, words, odd);
        if constexpr (Widener::kPerWord >= 4) {
          step<2>(task, d, words, even);
          step<3>(task, d, words, odd);
        }
        if constexpr (Widener::kPerWord == 8) {
          step<4>(task, d, words, even);
          step<5>(task, d, words, odd);
          step<6>(task, d, words, even);
          step<7>(task, d, words, odd);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) dot[r][0] = add(dot[r][0], add(even[r], odd[r]));
    }
  }
};

// Which of these an arithmetic takes over K of a type.
template <kv::KvType kType>
using Widen = std::conditional_t<kType == kv::KvType::kInt4, WidenInt4,
                                 std::conditional_t<kType == kv::KvType::kInt8, WidenInt8, WidenBf16>>;
template <Arithmetic kArithmetic, kv::KvType kType>
struct KeysOf {
  using Type = std::conditional_t<kArithmetic == Arithmetic::kBf16, Bf16Keys<Widen<kType>>, F32Keys<Widen<kType>>>;
};
template <>
struct KeysOf<Arithmetic::kInt8, kv::KvType::kInt8> {
  using Type = Int8Keys;
};
template <>
struct KeysOf<Arithmetic::kInt8, kv::KvType::kInt4> {
  using Type = Int4Keys;
};

template <class Keys, int kRows>
inline void score_rows(const ScoreTask& task) {
  constexpr int kVectors = Keys::kVectors;
  for (int token = 0; token < kv::kBlockTokens; token += kVectors * kLanes) {
    F32 dots[kRows][kVectors];
    Keys::dots(task, token, dots);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 amount = splat(task.amounts[r]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const int at = token + v * kLanes;
        dots[r][v] = mul(dots[r][v], mul(amount, load(task.k_scales + at)));
        store(task.scores + r * kSpanTokens + at, dots[r][v]);
      }
      if (task.maxima == nullptr) continue;
      F32 highest = load(task.maxima + r * kLanes);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) highest = max(highest, dots[r][v]);
      store(task.maxima + r * kLanes, highest);
    }
  }
}

// n_rows in [1, Keys::kMaxRows].
template <class Keys>
inline void score_block(const ScoreTask& task, int n_rows) {
  switch (n_rows) {
    case 1:
      return score_rows<Keys, 1>(task);
    case 2:
      return score_rows<Keys, 2>(task);
    case 3:
      return score_rows<Keys, 3>(task);
    case 4:
      return score_rows<Keys, 4>(task);
  }
  if constexpr (Keys::kMaxRows > 4) {
    switch (n_rows) {
      case 5:
        return score_rows<Keys, 5>(task);
      case 6:
        return score_rows<Keys, 6>(task);
      case 7:
        return score_rows<Keys, 7>(task);
      case 8:
        return score_rows<Keys, 8>(task);
    }
  }
}
