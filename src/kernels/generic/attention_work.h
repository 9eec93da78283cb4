// What one span of one attention call works on: prepared queries, who sees what, scales.
// Not self-contained: include inside a region, before attention.h.

// What attention_prepare leaves.
struct QueryScratch {
  float* amounts;       // [rows]: scale, times the query's own scale in int8
  int32_t* sum_starts;  // [rows]
  int8_t* q8;           // [rows, head_dim]
  float* q32;           // [rows, head_dim], rotated and rounded to bf16 as they are wanted; in the same place

  PAGODA_SIMD explicit QueryScratch(std::byte* scratch)
      : amounts(reinterpret_cast<float*>(scratch + SpanScratch::kAmounts)),
        sum_starts(reinterpret_cast<int32_t*>(scratch + SpanScratch::kCorrections)),
        q8(reinterpret_cast<int8_t*>(scratch + SpanScratch::kQueries)),
        q32(reinterpret_cast<float*>(scratch + SpanScratch::kQueries)) {}
};

// One span of one call.
struct SpanWork {
  const AttentionArgs& args;
  int first_block;
  float* scores;    // [rows, kSpanTokens]; weights after the softmax
  float* k_scales;  // [kSpanTokens]
  float* v_scales;
  QueryScratch queries;
  float* units;           // [rows]: of the integer sums of values
  int32_t* value_starts;  // [rows]: what doubled sums of int4 values have beside
  const float* q[kAttentionMaxRows];
  Range seen[kAttentionMaxRows];        // tokens of the span
  float* maxima;                        // [rows, 16]
  uint8_t blocks[kAttentionMaxRows];    // bit b: the row sees tokens of block b
  uint8_t whole[kAttentionMaxRows];     // bit b: the row sees all of block b
  uint8_t is_final[kAttentionMaxRows];  // bit b: the scores of block b are final and in maxima
  const std::byte* ahead[kSpanBlocks];  // the head in the blocks that come next; scratch where there is none

  PAGODA_SIMD SpanWork(const AttentionArgs& a, int span, std::byte* scratch)
      : args(a),
        first_block(span * kSpanBlocks),
        scores(reinterpret_cast<float*>(scratch + SpanScratch::kScores)),
        k_scales(reinterpret_cast<float*>(scratch + SpanScratch::kKScales)),
        v_scales(reinterpret_cast<float*>(scratch + SpanScratch::kVScales)),
        queries(scratch),
        units(reinterpret_cast<float*>(scratch + SpanScratch::kUnits)),
        value_starts(reinterpret_cast<int32_t*>(scratch + SpanScratch::kValueStarts)),
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
    look_ahead(highest / kv::kBlockTokens, scratch);
  }

  // To the next span, or after the last one to the blocks of the next call.
  PAGODA_SIMD void look_ahead(int last_block, const std::byte* nothing) {
    const int first = first_block + kSpanBlocks;
    const bool is_last = first > last_block;
    const std::byte* const* blocks = is_last ? args.next.blocks : args.kv.blocks + first;
    const int n_blocks = is_last ? args.next.n_blocks : last_block + 1 - first;
    const size_t head_offset = is_last ? args.next.head_offset : args.kv.head_offset;
    for (int b = 0; b < kSpanBlocks; ++b) {
      const bool is_there = b < n_blocks && blocks[b] != nullptr;
      ahead[b] = is_there ? blocks[b] + head_offset : nothing;
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
    store(out + i, kv::is_scaled(type) ? widen_f16(scales + i) : splat(1.0f));
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

// int8 arithmetic over integer K: per head row s_q = amax / 127, q = round-half-even(x / s_q).
PAGODA_SIMD void quantize_query(const float* from, const AttentionArgs& args, const QueryScratch& to, int row) {
  const int head_dim = args.kv.head_dim;
  const float scale = largest_magnitude(from, head_dim) / kInt8Max;
  I32 sum = splat_i32(0);
  for (int d = 0; d < head_dim; d += kLanes) {
    const I32 q = scale == 0.0f ? splat_i32(0) : quantize_i8(load(from + d), splat(scale));
    sum = add(sum, q);
    store_i8(to.q8 + row * head_dim + d, q);
  }
  to.amounts[row] = scale * args.scale;
  to.sum_starts[row] = (args.kv.layer.format.k == kv::KvType::kInt8 ? kSumStart : -15) * reduce_add(sum);
}

// A row's query in f32, rotated where K is.
PAGODA_SIMD const float* query_of(const AttentionArgs& args, int row, float* rotated) {
  const float* from = args.q + args.row_offset[row];
  if (!kv::is_scaled(args.kv.layer.format.k)) return from;
  rotate(from, args.kv.head_dim, rotated);
  return rotated;
}

// Rotated rows lie four times as far apart as their int8, which so never reach a row that is still wanted.
template <Arithmetic kArithmetic>
inline void attention_prepare(const AttentionArgs& args, std::byte* scratch) {
  const QueryScratch to(scratch);
  const int head_dim = args.kv.head_dim;
  const bool is_int8 = kArithmetic == Arithmetic::kInt8 && kv::is_scaled(args.kv.layer.format.k);
  for (int r = 0; r < args.n_rows; ++r) {
    float* q32 = to.q32 + r * head_dim;
    const float* from = query_of(args, r, q32);
    if (is_int8) {
      quantize_query(from, args, to, r);
      continue;
    }
    to.amounts[r] = args.scale;
    if constexpr (kArithmetic == Arithmetic::kBf16) {
      for (int d = 0; d < head_dim; d += kLanes) store(q32 + d, round_bf16(load(from + d)));
    }
  }
}
