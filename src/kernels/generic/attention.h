// Attention over spans (ref/attention.cc defines it): scores of a tile of rows, softmax, values.
// Not self-contained: include inside a region, after attention_work.h.

// Rows whose scores are kept before their values are taken: scores (18 KB), K and V of a span stay in the first-level
// cache; a multiple of kValueRows.
inline constexpr int kRowsAtOnce = 3 * kValueRows;

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
                       .q8 = work.queries.q8 + first * view.head_dim,
                       .sum_starts = work.queries.sum_starts + first,
                       .q = work.q + first,
                       .amounts = work.queries.amounts + first,
                       .scores = work.scores + first * kSpanTokens + b * kv::kBlockTokens,
                       .maxima = whole != 0 ? work.maxima + first * kLanes : nullptr};
  // Half of the next span's K before, half after: more at once would wait for the memory.
  const size_t key_bytes = kv::is_scaled(view.layer.format.k) ? view.layer.k_scales : view.layer.v;
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

struct WeightSums {
  float l;
  float largest;  // weight; QuadOrder only
};

// Turns a row's scores into weights p * s_v. A masked token's p is exactly 0 (exp of -inf).
template <class Order>
inline WeightSums weigh(const SpanWork& work, int row, float m) {
  const Range seen = work.seen[row];
  float* scores = work.scores + row * kSpanTokens;
  F32 sum = zero();
  F32 largest = zero();
  const auto take = [&](int t, F32 p) __attribute__((always_inline)) {
    sum = add(sum, p);
    const F32 w = mul(p, load(work.v_scales + t));
    if constexpr (kIsQuadOrder<Order>) largest = max(w, largest);
    Order::store_weights(scores, t, w);
  };
  int t = seen.begin / kLanes * kLanes;
  for (; t + kExpVectors * kLanes <= seen.end; t += kExpVectors * kLanes) {
    F32 p[kExpVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kExpVectors; ++i) p[i] = sub(load(scores + t + i * kLanes), splat(m));
    exp_finite(p);
#pragma GCC unroll 4
    for (int i = 0; i < kExpVectors; ++i) take(t + i * kLanes, p[i]);
  }
  for (; t < seen.end; t += kLanes) take(t, exp_finite(sub(load(scores + t), splat(m))));
  return {reduce_add(sum), kIsQuadOrder<Order> ? reduce_max(largest) : 0.0f};
}

inline void clear_row(int head_dim, float* partial) {
  partial[0] = kMinusInfinity;
  partial[1] = 0.0f;
  for (int d = 0; d < head_dim; d += kLanes) store(partial + kPartialHeader + d, zero());
}

// A row's weights in the blocks it sees become quads of integers. They take half the place, from the row's start on: with
// blocks ascending nothing is written over before it is read. Leaves the unit of their sums, and what int4's have beside.
template <int kParts>
inline void quantize_weights(const SpanWork& work, int row, float largest) {
  const Range seen = work.seen[row];
  const float* weights = work.scores + row * kSpanTokens;
  auto* quads = reinterpret_cast<std::byte*>(work.scores + row * kSpanTokens);
  const F32 factor = splat(weight_factor(largest));
  const auto quantized = [&](int t) __attribute__((always_inline)) {
    if (t + kLanes <= seen.begin || t >= seen.end) return splat_i32(0);  // softmax left its scores
    return round_to_i32(max(mul(load(weights + t), factor), zero()));
  };
  I32 sum = splat_i32(0);
  for (uint32_t rest = work.blocks[row]; rest != 0; rest &= rest - 1) {
    const int t = __builtin_ctz(rest) * kv::kBlockTokens;
    const I32 first = quantized(t);
    const I32 second = quantized(t + kLanes);
    if constexpr (kParts == 2) sum = add(sum, add(first, second));
    store_weight_quads(quads + static_cast<size_t>(t / kQuadTokens) * kWeightQuadBytes, first, second);
  }
  work.units[row] = largest / kWeightMax;
  if constexpr (kParts == 2) work.value_starts[row] = -15 * reduce_add(sum);
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
    if (work.seen[r].size() == 0) continue;
    const WeightSums sums = weigh<Order>(work, r, partial[r * stride]);
    partial[r * stride + 1] = sums.l;
    if constexpr (kIsQuadOrder<Order>) quantize_weights<Order::kParts>(work, r, sums.largest);
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

// Integers: one run of whole quads, all that any row of the register block sees; whoever sees less has weights of 0 there.
template <class Quads>
inline void quads_of_piece(const SpanWork& work, int first, int n, float* partial) {
  const uint32_t blocks = union_of_blocks(work, first, first + n);
  if (blocks == 0) return;
  Range tokens{kSpanTokens, 0};
  for (int r = first; r < first + n; ++r) {
    auto* quads = reinterpret_cast<std::byte*>(work.scores + r * kSpanTokens);
    for (uint32_t rest = blocks & ~work.blocks[r]; rest != 0; rest &= rest - 1) {
      constexpr int kBytes = kv::kBlockTokens / kQuadTokens * static_cast<int>(kWeightQuadBytes);
      __builtin_memset(quads + __builtin_ctz(rest) * kBytes, 0, kBytes);
    }
    if (work.blocks[r] == 0) {
      work.units[r] = 0.0f;
      work.value_starts[r] = 0;
      continue;
    }
    tokens.begin = std::min(tokens.begin, work.seen[r].begin / kQuadTokens * kQuadTokens);
    tokens.end = std::max(tokens.end, (work.seen[r].end + kQuadTokens - 1) / kQuadTokens * kQuadTokens);
  }
  const int stride = partial_floats(work.args.kv.head_dim);
  weigh_rows<Quads>({.view = &work.args.kv,
                     .first_block = work.first_block,
                     .blocks = blocks,
                     .begin = tokens.begin,
                     .end = tokens.end,
                     .load = 0,
                     .weights = reinterpret_cast<const std::byte*>(work.scores + first * kSpanTokens),
                     .units = work.units + first,
                     .starts = work.value_starts + first,
                     .out = partial + first * stride + kPartialHeader,
                     .out_stride = stride,
                     .ahead = work.ahead},
                    n);
}

// Scores become O in partial.
template <class Values, class Order>
inline void value_tile(const SpanWork& work, Range rows, float* partial) {
  softmax_rows<Order>(work, rows, partial);
  const int piece = even_piece(rows.size(), kValueRows);
  for (int r = rows.begin; r < rows.end; r += piece) {
    const int n = std::min(piece, rows.end - r);
    if constexpr (kIsQuadOrder<Order>) {
      quads_of_piece<Values>(work, r, n, partial);
    } else if constexpr (Order::kChains == 1) {
      values_of_piece<Values>(work, r, n, partial);
    } else {
      cells_of_piece<Values>(work, r, n, partial);
    }
  }
}

template <Arithmetic kArithmetic>
inline void score_rows_of(SpanWork& work, Range rows) {
  switch (work.args.kv.layer.format.k) {
    case kv::KvType::kBf16:
      return score_tile<typename KeysOf<kArithmetic, kv::KvType::kBf16>::Type>(work, rows);
    case kv::KvType::kInt8:
      return score_tile<typename KeysOf<kArithmetic, kv::KvType::kInt8>::Type>(work, rows);
    case kv::KvType::kInt4:
      return score_tile<typename KeysOf<kArithmetic, kv::KvType::kInt4>::Type>(work, rows);
  }
}

template <Arithmetic kArithmetic>
inline void value_rows_of(const SpanWork& work, Range rows, float* partial) {
  constexpr bool kIsInt8 = kArithmetic == Arithmetic::kInt8;
  using Order = std::conditional_t<kArithmetic == Arithmetic::kBf16, CellOrder, TokenOrder>;
  using Int8 = std::conditional_t<kIsInt8, Int8Quads, Int8Values>;
  using Int4 = std::conditional_t<kIsInt8, Int4Quads, Int4Values>;
  switch (work.args.kv.layer.format.v) {
    case kv::KvType::kBf16:
      return value_tile<Bf16Values, Order>(work, rows, partial);
    case kv::KvType::kInt8:
      return value_tile<Int8, std::conditional_t<kIsInt8, QuadOrder<Int8>, Order>>(work, rows, partial);
    case kv::KvType::kInt4:
      return value_tile<Int4, std::conditional_t<kIsInt8, QuadOrder<Int4>, Order>>(work, rows, partial);
  }
}

template <Arithmetic kArithmetic>
inline void attention_span(const AttentionArgs& args, int span, float* partial, std::byte* scratch) {
  SpanWork work(args, span, scratch);
  if (kArithmetic == Arithmetic::kBf16 || kv::is_scaled(args.kv.layer.format.k)) {
    for (int r = 0; r < args.n_rows; ++r) work.q[r] = work.queries.q32 + r * args.kv.head_dim;
  }
  prepare_scales(work);
  for (int r = 0; r < args.n_rows; r += kRowsAtOnce) {
    const Range rows{r, std::min(r + kRowsAtOnce, args.n_rows)};
    score_rows_of<kArithmetic>(work, rows);
    value_rows_of<kArithmetic>(work, rows, partial);
  }
}
