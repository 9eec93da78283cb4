// Scores of rows against one block: all rows of a register block share each load of K.
// Not self-contained: include inside a region, after simd_attention.h.
// score = dot * (amount * s_k); amount is the row's (attention.h). The dot is exact in int8, an fma chain over dims
// ascending in f32.

// Where one register block reads and writes.
struct ScoreTask {
  const std::byte* k;  // the block's K
  int head_dim;
  const float* k_scales;      // [32]
  const int8_t* q8;           // [rows, head_dim]
  const int32_t* sum_starts;  // [rows]
  const float* const* q;      // [rows][head_dim]
  const float* amounts;       // [rows]
  float* scores;              // [rows, kSpanTokens]
};

// int8 arithmetic over int8 K.
struct Int8Keys {
  template <int kRows, int kVectors>
  PAGODA_SIMD static void dots(const ScoreTask& task, int token, F32 (&out)[kRows][kVectors]) {
    QuadSums sum[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = QuadSums::from(task.sum_starts[r]);
    }
    const std::byte* k = task.k + token * 4;
    int d = 0;
    do {
      KeyQuads keys[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) keys[v] = key_quads(load_i32(k + v * 64));
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) sum[r][v].add(keys[v], task.q8 + r * task.head_dim + d);
      }
      k += kv::kBlockTokens * 4;
      d += 4;
    } while (d < task.head_dim);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) out[r][v] = sum[r][v].total();
    }
  }
};

// f32 queries over widened K: kPerWord dims are packed in each token's 32 bits.
struct WidenInt8 {
  static constexpr int kPerWord = 4;
  template <int kIndex>
  PAGODA_SIMD static F32 get(I32 words) {
    return to_f32(shift_right_signed<24>(shift_left<24 - 8 * kIndex>(words)));
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

template <class Widen>
struct F32Keys {
  template <int kIndex, int kRows, int kVectors>
  PAGODA_SIMD static void step(const ScoreTask& task, int dim, const I32 (&words)[kVectors],
                               F32 (&sum)[kRows][kVectors]) {
    F32 keys[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) keys[v] = Widen::template get<kIndex>(words[v]);
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
    for (int d = 0; d < task.head_dim; d += Widen::kPerWord, k += kv::kBlockTokens * 4) {
      I32 words[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) words[v] = load_i32(k + v * 64);
      step<0>(task, d, words, sum);
      step<1>(task, d, words, sum);
      if constexpr (Widen::kPerWord == 4) {
        step<2>(task, d, words, sum);
        step<3>(task, d, words, sum);
      }
    }
  }
};

template <class Keys, int kRows>
inline void score_rows(const ScoreTask& task) {
  for (int token = 0; token < kv::kBlockTokens; token += kScoreVectors * kLanes) {
    F32 dots[kRows][kScoreVectors];
    Keys::dots(task, token, dots);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 amount = splat(task.amounts[r]);
#pragma GCC unroll 2
      for (int v = 0; v < kScoreVectors; ++v) {
        const int at = token + v * kLanes;
        store(task.scores + r * kSpanTokens + at, mul(dots[r][v], mul(amount, load(task.k_scales + at))));
      }
    }
  }
}

// n_rows in [1, kScoreRows].
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
  if constexpr (kScoreRows > 4) {
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
