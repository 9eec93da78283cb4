// Attention over spans (ref/attention.cc defines it): scores of a tile of rows, softmax, values.
// Not self-contained: include inside a region, last.

// Rows whose scores are kept before their values are taken: scores (18 KB), K and V of a span stay in the first-level
// cache; a multiple of kValueRows.
inline constexpr int kRowsAtOnce = 3 * kValueRows;

// One span of one call.
struct SpanWork {
  const AttentionArgs& args;
  int first_block;
  float* scores;    // [rows, kSpanTokens]; weights after the softmax
  float* k_scales;  // [kSpanTokens]
  float* v_scales;
  float* amounts;       // [rows]: scale, times the query's own scale in int8
  int32_t* sum_starts;  // [rows]
  int8_t* q8;           // [rows, head_dim]
  float* q16;           // [rows, head_dim], rounded to bf16; in the same place
  const float* q[kAttentionMaxRows];
  Range seen[kAttentionMaxRows];        // tokens of the span
  float* maxima;                        // [rows, 16]
  uint8_t blocks[kAttentionMaxRows];    // bit b: the row sees tokens of block b
  uint8_t whole[kAttentionMaxRows];     // bit b: the row sees all of block b
  uint8_t is_final[kAttentionMaxRows];  // bit b: the scores of block b are final and in maxima
  const std::byte* ahead[kSpanBlocks];  // this head in the next span's blocks; scratch where there is none

  PAGODA_SIMD SpanWork(const AttentionArgs& a, int span, std::byte* scratch)
      : args(a),
        first_block(span * kSpanBlocks),
        scores(reinterpret_cast<float*>(scratch + SpanScratch::kScores)),
        k_scales(reinterpret_cast<float*>(scratch + SpanScratch::kKScales)),
        v_scales(reinterpret_cast<float*>(scratch + SpanScratch::kVScales)),
        amounts(reinterpret_cast<float*>(scratch + SpanScratch::kAmounts)),
        sum_starts(reinterpret_cast<int32_t*>(scratch + SpanScratch::kCorrections)),
        q8(reinterpret_cast<int8_t*>(scratch + SpanScratch::kQueries)),
        q16(reinterpret_cast<float*>(scratch + SpanScratch::kQueries)),
        maxima(reinterpret_cast<float*>(scratch + SpanScratch::kMaxima)) {
    int32_t highest = 0;
    for (int r = 0; r < args.n_rows; ++r) {
      q[r] = args.q + args.row_offset[r];
      seen[r] = visible_tokens(args, r, span);
      blocks[r] = blocks_of(seen[r]);
      whole[r] = whole_blocks_of(seen[r]);
      is_final[r] = 0;
      highest = std::max(highest, args.position[r]);
    }
    for (int b = 0; b < kSpanBlocks; ++b) {
      const int next = first_block + kSpanBlocks + b;
      const bool is_there = next <= highest / kv::kBlockTokens && args.kv.blocks[next] != nullptr;
      ahead[b] = is_there ? args.kv.k(next) : scratch;
    }
  }

  PAGODA_SIMD static uint8_t blocks_of(Range tokens) {
    if (tokens.size() == 0) return 0;
    const int end = (tokens.end + kv::kBlockTokens - 1) / kv::kBlockTokens;
    return static_cast<uint8_t>((1U << end) - (1U << (tokens.begin / kv::kBlockTokens)));
  }
  PAGODA_SIMD static uint8_t whole_blocks_of(Range tokens) {
    const int begin = (tokens.begin + kv::kBlockTokens - 1) / kv::kBlockTokens;
    const int end = tokens.end / kv::kBlockTokens;
    return begin < end ? static_cast<uint8_t>((1U << end) - (1U << begin)) : uint8_t{0};
  }
};

// Blocks that any of rows [begin, end) sees.
inline uint32_t union_of_blocks(const SpanWork& work, int begin, int end) {
  uint32_t blocks = 0;
  for (int r = begin; r < end; ++r) blocks |= work.blocks[r];
  return blocks;
}

// A block's 32 scales as f32; a bf16 part has scale 1.
inline void widen_scales(kv::KvType type, const uint16_t* scales, float* out) {
  for (int i = 0; i < kv::kBlockTokens; i += kLanes) {
    store(out + i, type == kv::KvType::kInt8 ? widen_f16(scales + i) : splat(1.0f));
  }
}

inline void prepare_scales(const SpanWork& work) {
  const kv::KvView& view = work.args.kv;
  const uint32_t blocks = union_of_blocks(work, 0, work.args.n_rows);
  for (int b = 0; b < kSpanBlocks; ++b) {
    if ((blocks >> b & 1) == 0) continue;
    widen_scales(view.layer.format.k, view.k_scales(work.first_block + b), work.k_scales + b * kv::kBlockTokens);
    widen_scales(view.layer.format.v, view.v_scales(work.first_block + b), work.v_scales + b * kv::kBlockTokens);
  }
}

// The queries of int8 arithmetic over int8 K: per head row s_q = amax / 127, q = round-half-even(x / s_q).
inline void quantize_queries(const SpanWork& work) {
  const int head_dim = work.args.kv.head_dim;
  for (int r = 0; r < work.args.n_rows; ++r) {
    int8_t* q8 = work.q8 + r * head_dim;
    const float scale = largest_magnitude(work.q[r], head_dim) / kInt8Max;
    I32 sum = splat_i32(0);
    for (int d = 0; d < head_dim; d += kLanes) {
      const I32 q = scale == 0.0f ? splat_i32(0) : quantize_i8(load(work.q[r] + d), splat(scale));
      sum = add(sum, q);
      store_i8(q8 + d, q);
    }
    work.amounts[r] = scale * work.args.scale;
    work.sum_starts[r] = kSumStart * reduce_add(sum);
  }
}

// The queries of bf16 arithmetic.
inline void round_queries(SpanWork& work) {
  const int head_dim = work.args.kv.head_dim;
  for (int r = 0; r < work.args.n_rows; ++r) {
    float* q16 = work.q16 + r * head_dim;
    for (int d = 0; d < head_dim; d += kLanes) store(q16 + d, round_bf16(load(work.q[r] + d)));
    work.q[r] = q16;
  }
}

// Size of the pieces when n rows are cut into as few pieces of at most `most` as possible, evenly.
PAGODA_SIMD int even_piece(int n, int most) {
  const int pieces = (n + most - 1) / most;
  return (n + pieces - 1) / pieces;
}

PAGODA_SIMD void prefetch_bytes(const std::byte* from, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// Block b for a register block of rows. Its scores are final if there is no softcap and every row sees the whole block.
template <class Keys>
inline void score_piece(SpanWork& work, int first, int n, int b) {
  const kv::KvView& view = work.args.kv;
  uint32_t whole = work.args.softcap == 0.0f ? 1U << b : 0;
  for (int r = first; r < first + n; ++r) whole &= work.whole[r];
  for (int r = first; r < first + n; ++r) work.is_final[r] |= static_cast<uint8_t>(whole);
  const ScoreTask task{.k = view.k(work.first_block + b),
                       .head_dim = view.head_dim,
                       .k_scales = work.k_scales + b * kv::kBlockTokens,
                       .q8 = work.q8 + first * view.head_dim,
                       .sum_starts = work.sum_starts + first,
                       .q = work.q + first,
                       .amounts = work.amounts + first,
                       .scores = work.scores + first * kSpanTokens + b * kv::kBlockTokens,
                       .maxima = whole != 0 ? work.maxima + first * kLanes : nullptr};
  // Half of the next span's K before, half after: more at once would wait for the memory.
  const size_t key_bytes = view.layer.format.k == kv::KvType::kInt8 ? view.layer.k_scales : view.layer.v;
  if (first == 0) prefetch_bytes(work.ahead[b], 0, key_bytes / 2);
  score_block<Keys>(task, n);
  if (first == 0) prefetch_bytes(work.ahead[b], key_bytes / 2, key_bytes + kv::kBlockTokens * sizeof(uint16_t));
}

template <class Keys>
inline void score_tile(SpanWork& work, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) store(work.maxima + r * kLanes, splat(kMinusInfinity));
  const uint32_t blocks = union_of_blocks(work, rows.begin, rows.end);
  const int piece = even_piece(rows.size(), Keys::kMaxRows);
  for (int b = 0; b < kSpanBlocks; ++b) {
    if ((blocks >> b & 1) == 0) continue;
    for (int r = rows.begin; r < rows.end; r += piece) {
      const int n = std::min(piece, rows.end - r);
      if ((union_of_blocks(work, r, r + n) >> b & 1) != 0) score_piece<Keys>(work, r, n, b);
    }
  }
}

// Scores of sixteen tokens of a row after the softcap; -inf where the row sees nothing.
template <class Order>
PAGODA_SIMD F32 masked_scores(const SpanWork& work, int row, int token) {
  const AttentionArgs& args = work.args;
  const Range seen = work.seen[row];
  F32 s = load(work.scores + row * kSpanTokens + token);
  if constexpr (Order::kScoresAreDots) s = mul(s, load(work.k_scales + token));
  if (args.softcap != 0.0f) s = softcap(s, splat(args.softcap));
  if (seen.begin <= token && token + kLanes <= seen.end) return s;
  return select(lanes_in(seen.begin - token, seen.end - token), s, splat(kMinusInfinity));
}

// A row's scores masked in place, and their maximum.
template <class Order>
inline float finish_scores(const SpanWork& work, int row) {
  const Range seen = work.seen[row];
  float* scores = work.scores + row * kSpanTokens;
  F32 highest = Order::kScoresAreDots ? splat(kMinusInfinity) : load(work.maxima + row * kLanes);
  for (uint32_t rest = work.blocks[row] & ~work.is_final[row]; rest != 0; rest &= rest - 1) {
    const int first = __builtin_ctz(rest) * kv::kBlockTokens;
    for (int t = first; t < first + kv::kBlockTokens; t += kLanes) {
      if (t + kLanes <= seen.begin || t >= seen.end) continue;
      const F32 s = masked_scores<Order>(work, row, t);
      highest = max(highest, s);
      store(scores + t, s);
    }
  }
  return reduce_max(highest) + 0.0f;  // one zero
}

// Turns a row's scores into weights p * s_v; gives l. A masked token's p is exactly 0 (exp of -inf).
template <class Order>
inline float weigh(const SpanWork& work, int row, float m) {
  const Range seen = work.seen[row];
  float* scores = work.scores + row * kSpanTokens;
  F32 sum = zero();
  int t = seen.begin / kLanes * kLanes;
  for (; t + kExpVectors * kLanes <= seen.end; t += kExpVectors * kLanes) {
    F32 p[kExpVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kExpVectors; ++i) p[i] = sub(load(scores + t + i * kLanes), splat(m));
    exp_finite(p);
#pragma GCC unroll 4
    for (int i = 0; i < kExpVectors; ++i) {
      sum = add(sum, p[i]);
      Order::store_weights(scores, t + i * kLanes, mul(p[i], load(work.v_scales + t + i * kLanes)));
    }
  }
  for (; t < seen.end; t += kLanes) {
    const F32 p = exp_finite(sub(load(scores + t), splat(m)));
    sum = add(sum, p);
    Order::store_weights(scores, t, mul(p, load(work.v_scales + t)));
  }
  return reduce_add(sum);
}

inline void clear_row(int head_dim, float* partial) {
  partial[0] = kMinusInfinity;
  partial[1] = 0.0f;
  for (int d = 0; d < head_dim; d += kLanes) store(partial + kPartialHeader + d, zero());
}

// Scores become weights; partial gets m, l and O = 0. All maxima first: a row's weights wait for its own.
template <class Order>
inline void softmax_rows(const SpanWork& work, Range rows, float* partial) {
  const int head_dim = work.args.kv.head_dim;
  const int stride = partial_floats(head_dim);
  for (int r = rows.begin; r < rows.end; ++r) {
    clear_row(head_dim, partial + r * stride);
    if (work.seen[r].size() > 0) partial[r * stride] = finish_scores<Order>(work, r);
  }
  for (int r = rows.begin; r < rows.end; ++r) {
    if (work.seen[r].size() > 0) partial[r * stride + 1] = weigh<Order>(work, r, partial[r * stride]);
  }
}

// Rows [r, r + n), n <= kValueRows.
template <class Values, class Order>
inline void add_values(const SpanWork& work, int r, int n, Range tokens, float* partial) {
  const int stride = partial_floats(work.args.kv.head_dim);
  const ValueTask task{.view = &work.args.kv,
                       .first_block = work.first_block,
                       .begin = tokens.begin,
                       .end = tokens.end,
                       .dim = 0,
                       .weights = work.scores + r * kSpanTokens,
                       .out = partial + r * stride + kPartialHeader,
                       .out_stride = stride,
                       .ahead = work.ahead};
  accumulate_rows<Values, Order>(task, n);
}

// One register block: what all its rows see in one go, before and after it each row's own tokens.
template <class Values>
inline void values_of_piece(const SpanWork& work, int first, int n, float* partial) {
  Range common = work.seen[first];
  for (int r = first + 1; r < first + n; ++r) {
    common.begin = std::max(common.begin, work.seen[r].begin);
    common.end = std::min(common.end, work.seen[r].end);
  }
  if (common.begin >= common.end) {
    for (int r = first; r < first + n; ++r) add_values<Values, TokenOrder>(work, r, 1, work.seen[r], partial);
    return;
  }
  for (int r = first; r < first + n; ++r)
    add_values<Values, TokenOrder>(work, r, 1, {work.seen[r].begin, common.begin}, partial);
  add_values<Values, TokenOrder>(work, first, n, common, partial);
  for (int r = first; r < first + n; ++r)
    add_values<Values, TokenOrder>(work, r, 1, {common.end, work.seen[r].end}, partial);
}

// The weights of whole 16 tokens that softmax_row left as they were, in blocks that other rows see.
template <class Order>
inline void clear_unseen_weights(const SpanWork& work, int row, uint32_t blocks) {
  const Range seen = work.seen[row];
  for (int t = 0; t < kSpanTokens; t += kLanes) {
    if ((blocks >> (t / kv::kBlockTokens) & 1) == 0) continue;
    if (t + kLanes <= seen.begin || t >= seen.end) Order::store_weights(work.scores + row * kSpanTokens, t, zero());
  }
}

// O of a row whose blocks were added whole: one zero, so that a block of zero weights changes no bit.
inline void unite_zeros(int head_dim, float* out) {
  for (int d = 0; d < head_dim; d += kLanes) store(out + d, add(load(out + d), zero()));
}

// bf16: whole blocks, all that any row of the register block sees.
template <class Values>
inline void cells_of_piece(const SpanWork& work, int first, int n, float* partial) {
  const uint32_t blocks = union_of_blocks(work, first, first + n);
  for (int r = first; r < first + n; ++r) clear_unseen_weights<CellOrder>(work, r, blocks);
  for (int b = 0; b < kSpanBlocks; ++b) {
    if ((blocks >> b & 1) == 0) continue;
    add_values<Values, CellOrder>(work, first, n, {b * kv::kBlockTokens, (b + 1) * kv::kBlockTokens}, partial);
  }
  const int head_dim = work.args.kv.head_dim;
  for (int r = first; r < first + n; ++r) {
    unite_zeros(head_dim, partial + r * partial_floats(head_dim) + kPartialHeader);
  }
}

template <class Keys, class Values, class Order>
inline void attend_tile(SpanWork& work, Range rows, float* partial) {
  score_tile<Keys>(work, rows);
  softmax_rows<Order>(work, rows, partial);
  const int piece = even_piece(rows.size(), kValueRows);
  for (int r = rows.begin; r < rows.end; r += piece) {
    const int n = std::min(piece, rows.end - r);
    if constexpr (Order::kChains == 1) {
      values_of_piece<Values>(work, r, n, partial);
    } else {
      cells_of_piece<Values>(work, r, n, partial);
    }
  }
}

template <class Keys, class Order>
inline void attend_tiles(SpanWork& work, float* partial) {
  prepare_scales(work);
  for (int r = 0; r < work.args.n_rows; r += kRowsAtOnce) {
    const Range rows{r, std::min(r + kRowsAtOnce, work.args.n_rows)};
    if (work.args.kv.layer.format.v == kv::KvType::kInt8) {
      attend_tile<Keys, Int8Values, Order>(work, rows, partial);
    } else {
      attend_tile<Keys, Bf16Values, Order>(work, rows, partial);
    }
  }
}

template <Arithmetic kArithmetic>
inline void attention_span(const AttentionArgs& args, int span, float* partial, std::byte* scratch) {
  SpanWork work(args, span, scratch);
  const bool int8_keys = args.kv.layer.format.k == kv::KvType::kInt8;
  if (kArithmetic == Arithmetic::kInt8 && int8_keys) {
    quantize_queries(work);
    attend_tiles<Int8Keys, TokenOrder>(work, partial);
    return;
  }
  for (int r = 0; r < args.n_rows; ++r) work.amounts[r] = args.scale;
  if constexpr (kArithmetic == Arithmetic::kBf16) {
    round_queries(work);
    int8_keys ? attend_tiles<Bf16Keys<WidenInt8>, CellOrder>(work, partial)
              : attend_tiles<Bf16Keys<WidenBf16>, CellOrder>(work, partial);
  } else {
    int8_keys ? attend_tiles<F32Keys<WidenInt8>, TokenOrder>(work, partial)
              : attend_tiles<F32Keys<WidenBf16>, TokenOrder>(work, partial);
  }
}

inline void attention_merge(float* into, const float* next, int n_rows, int head_dim) {
  const int size = partial_floats(head_dim);
  for (int r = 0; r < n_rows; ++r, into += size, next += size) {
    if (next[0] == kMinusInfinity) continue;
    if (into[0] == kMinusInfinity) {
      __builtin_memcpy(into, next, static_cast<size_t>(size) * sizeof(float));
      continue;
    }
    const float m = into[0] > next[0] ? into[0] : next[0];
    // The factor of the larger maximum is exp(0), exactly 1.
    const bool into_is_larger = into[0] > next[0];
    const F32 factor = exp_finite(splat((into_is_larger ? next[0] : into[0]) - m));
    const F32 a = into_is_larger ? splat(1.0f) : factor;
    const F32 b = into_is_larger ? factor : splat(1.0f);
    into[0] = m;
    store_first(into + 1, fma(load_first(next + 1, 1), b, mul(load_first(into + 1, 1), a)), 1);
    for (int d = kPartialHeader; d < size; d += kLanes) {
      store(into + d, fma(load(next + d), b, mul(load(into + d), a)));
    }
  }
}

inline void attention_finish(const AttentionArgs& args, const float* partial) {
  for (int r = 0; r < args.n_rows; ++r, partial += partial_floats(args.kv.head_dim)) {
    float* out = args.out + args.row_offset[r];
    const F32 sum = splat(partial[1] == 0.0f ? 1.0f : partial[1]);
    for (int d = 0; d < args.kv.head_dim; d += kLanes) store(out + d, div(load(partial + kPartialHeader + d), sum));
  }
}
