// bf16 attention on AMX tiles: the bits of ref (TDPBF16PS adds as its cells do). Up to 16 rows are a tile, two tiles of rows
// share every load of K and V; K and V in bf16 are operands as they lie in the cache, integers are widened into scratch once
// for all rows. Softmax is AVX-512's.
#include "kernels/amx/attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/amx/tiles.h"
#include "kernels/attention_args.h"
#include "kernels/bf16_rule.h"
#include "kernels/int8_rule.h"
#include "kernels/math.h"
#include "kernels/rotation.h"
#include "kernels/table.h"
#include "tensor/float16.h"

// clang-format off
#include "kernels/amx/begin.h"
#include "kernels/avx512/simd.h"
#include "kernels/avx512/simd_attention.h"
#include "kernels/generic/math.h"
#include "kernels/generic/int8_rule.h"
#include "kernels/generic/rotation.h"
#include "kernels/generic/bf16_rule.h"
#include "kernels/generic/attention_scores.h"
#include "kernels/generic/attention_values.h"
#include "kernels/generic/attention_work.h"
#include "kernels/generic/attention.h"
// clang-format on

inline constexpr int kCellDims = 2 * kTilePairs;
inline constexpr size_t kPairBytes = 4;
inline constexpr size_t kScoreStride = kSpanTokens * sizeof(float);

// Sixteen f32 whose low halves are zero (bf16 already), as bf16 pairs (low, high) of each lane.
PAGODA_SIMD __m512i join_pairs(F32 low, F32 high) {
  return _mm512_or_si512(_mm512_srli_epi32(bits_of(low).v, 16), bits_of(high).v);
}

// Sixteen values rounded to bf16 (bf16_rule.h is what the instruction does).
PAGODA_SIMD void store_as_bf16(void* to, F32 x) {
  const __m256bh rounded = _mm512_cvtneps_pbh(x.v);
  __builtin_memcpy(to, &rounded, sizeof(rounded));
}

// Scores come from the tiles as dots, and all rows have the same amount, which the scales of K hold already; weights go where A wants them: bf16, in the first half of the row's scores.
struct TileOrder {
  static constexpr bool kScoresAreDots = true;
  PAGODA_SIMD static void store_weights(float* row, int token, F32 w) {
    store_as_bf16(reinterpret_cast<uint16_t*>(row) + token, w);
  }
};

// Operands in scratch.
struct TileOperands {
  int cells;       // of 32 dims, the last one perhaps half zeros
  uint16_t* q;     // [rows up to whole tiles, cells * 32]
  std::byte* k;    // [cells * 16][32 tokens][2]
  std::byte* v;    // [kSpanBlocks][16][head_dim][2]
  size_t q_bytes;  // of a row

  PAGODA_SIMD TileOperands(int head_dim, std::byte* scratch)
      : cells((head_dim + kCellDims - 1) / kCellDims),
        q(reinterpret_cast<uint16_t*>(scratch + SpanScratch::kQueries)),
        k(scratch + SpanScratch::keys(head_dim)),
        v(scratch + SpanScratch::values(head_dim)),
        q_bytes(static_cast<size_t>(cells * kCellDims) * sizeof(uint16_t)) {}
};

// Rows that tiles take: whole tiles, or the n_rows <= 16 there are.
PAGODA_SIMD int tile_rows(int n_rows) {
  return n_rows <= kTileRows ? n_rows : (n_rows + kTileRows - 1) / kTileRows * kTileRows;
}

// Rows beyond the last and dims beyond head_dim are zeros.
inline void attention_prepare_tiles(const AttentionArgs& args, std::byte* scratch) {
  const TileOperands operands(args.kv.head_dim, scratch);
  const int width = operands.cells * kCellDims;
  for (int r = 0; r < tile_rows(args.n_rows); ++r) {
    const float* q = r < args.n_rows ? query_of(args, r, reinterpret_cast<float*>(operands.k)) : nullptr;
    for (int d = 0; d < width; d += kLanes) {
      const bool is_there = q != nullptr && d < args.kv.head_dim;
      store_as_bf16(operands.q + r * width + d, is_there ? load(q + d) : zero());
    }
  }
}

// int8 K or V, rows of [width][4], into bf16 rows of [width][2], twice as many.
inline void widen_quads(const std::byte* from, int n_rows, int width, std::byte* out) {
  const size_t out_row = static_cast<size_t>(width) * kPairBytes;
  for (int row = 0; row < n_rows; ++row, out += 2 * out_row) {
    for (size_t at = 0; at < out_row; at += 64, from += 64) {
      const I32 quads = load_i32(from);
      _mm512_storeu_si512(out + at, join_pairs(WidenInt8::get<0>(quads), WidenInt8::get<1>(quads)));
      _mm512_storeu_si512(out + out_row + at, join_pairs(WidenInt8::get<2>(quads), WidenInt8::get<3>(quads)));
    }
  }
}

PAGODA_SIMD void store_pairs(F32 low, F32 high, std::byte* to) { _mm512_storeu_si512(to, join_pairs(low, high)); }

// int4 K, rows of [32 tokens][4] with 8 dims each, into bf16 rows of [32 tokens][2].
inline void widen_key_nibbles(const std::byte* from, int head_dim, std::byte* out) {
  constexpr size_t kRow = kv::kBlockTokens * kPairBytes;
  for (int d = 0; d < head_dim; d += 8, out += 4 * kRow) {
    for (size_t at = 0; at < kRow; at += 64, from += 64) {
      const I32 cells = load_i32(from);
      store_pairs(WidenInt4::get<0>(cells), WidenInt4::get<1>(cells), out + at);
      store_pairs(WidenInt4::get<2>(cells), WidenInt4::get<3>(cells), out + kRow + at);
      store_pairs(WidenInt4::get<4>(cells), WidenInt4::get<5>(cells), out + 2 * kRow + at);
      store_pairs(WidenInt4::get<6>(cells), WidenInt4::get<7>(cells), out + 3 * kRow + at);
    }
  }
}

// A block's int4 V into bf16 rows of [head_dim][2].
inline void widen_value_nibbles(const std::byte* from, int head_dim, std::byte* out) {
  const size_t row = static_cast<size_t>(head_dim) * kPairBytes;
  for (int slot = 0; slot < kv::kBlockTokens; slot += 4, out += 2 * row) {
    for (int d = 0; d < head_dim; d += 2 * kLanes, from += 64) {
      const I32 cells = load_i32(from);
      std::byte* to = out + static_cast<size_t>(d) * kPairBytes;
      store_pairs(WidenInt4::get<0>(cells), WidenInt4::get<1>(cells), to);
      store_pairs(WidenInt4::get<2>(cells), WidenInt4::get<3>(cells), to + row);
      if (d + kLanes >= head_dim) continue;
      store_pairs(WidenInt4::get<4>(cells), WidenInt4::get<5>(cells), to + 64);
      store_pairs(WidenInt4::get<6>(cells), WidenInt4::get<7>(cells), to + row + 64);
    }
  }
}

// A block's K as B tiles: where it lies if it is bf16 in whole cells, else a copy.
inline const std::byte* key_tiles(const SpanWork& work, const TileOperands& operands, int block) {
  const kv::KvView& view = work.args.kv;
  const std::byte* k = view.k(work.first_block + block);
  const auto bytes = static_cast<size_t>(view.head_dim / 2) * kv::kBlockTokens * kPairBytes;
  if (view.layer.format.k == kv::KvType::kInt4) {
    widen_key_nibbles(k, view.head_dim, operands.k);
  } else if (view.layer.format.k == kv::KvType::kInt8) {
    widen_quads(k, view.head_dim / 4, kv::kBlockTokens, operands.k);
  } else if (view.head_dim % kCellDims == 0) {
    return k;
  } else {
    __builtin_memcpy(operands.k, k, bytes);
  }
  const auto whole = static_cast<size_t>(operands.cells * kTilePairs) * kv::kBlockTokens * kPairBytes;
  __builtin_memset(operands.k + bytes, 0, whole - bytes);
  return operands.k;
}

// Tiles of C: 0 and 1 of the first sixteen rows, 2 and 3 of the next; of A: 4 and 5; of B: 6 and 7.
inline TileConfig tiles_for(int n_rows) {
  TileConfig config;
  for (const int tile : {0, 1, 4}) config.set(tile, std::min(n_rows, kTileRows));
  if (n_rows > kTileRows) {
    for (const int tile : {2, 3, 5}) config.set(tile, n_rows - kTileRows);
  }
  for (const int tile : {6, 7}) config.set(tile, kTilePairs);
  return config;
}

// Dots of kRowTiles tiles of rows with a block.
template <int kRowTiles, class Tiles>
inline void score_tiles(Tiles& tiles, const TileOperands& operands, int row, const std::byte* k, float* scores) {
  const auto* q = reinterpret_cast<const std::byte*>(operands.q) + static_cast<size_t>(row) * operands.q_bytes;
  constexpr size_t kRow = kv::kBlockTokens * kPairBytes;
  tiles.template zero<0>();
  tiles.template zero<1>();
  if constexpr (kRowTiles == 2) {
    tiles.template zero<2>();
    tiles.template zero<3>();
  }
  for (int cell = 0; cell < operands.cells; ++cell, q += kTileBytes, k += kTilePairs * kRow) {
    tiles.template load<4>(q, operands.q_bytes);
    tiles.template load<6>(k, kRow);
    tiles.template load<7>(k + kTileBytes, kRow);
    tiles.template dot_bf16<0, 4, 6>();
    tiles.template dot_bf16<1, 4, 7>();
    if constexpr (kRowTiles == 2) {
      tiles.template load<5>(q + kTileRows * operands.q_bytes, operands.q_bytes);
      tiles.template dot_bf16<2, 5, 6>();
      tiles.template dot_bf16<3, 5, 7>();
    }
  }
  tiles.template store<0>(scores, kScoreStride);
  tiles.template store<1>(scores + kLanes, kScoreStride);
  if constexpr (kRowTiles == 2) {
    tiles.template store<2>(scores + kTileRows * kSpanTokens, kScoreStride);
    tiles.template store<3>(scores + kTileRows * kSpanTokens + kLanes, kScoreStride);
  }
}

// O of dims [dim, dim + 16 * kDimTiles) of kRowTiles tiles of rows.
struct ValueTiles {
  const float* weights;  // the first row's
  uint32_t blocks;
  const std::byte* v[kSpanBlocks];
  size_t v_bytes;  // of a pair of tokens
  float* out;      // the first row's, at dim
  size_t out_bytes;
};
template <int kRowTiles, int kDimTiles, class Tiles>
inline void value_tiles(Tiles& tiles, const ValueTiles& task, int dim) {
  tiles.template zero<0>();
  if constexpr (kDimTiles == 2) tiles.template zero<1>();
  if constexpr (kRowTiles == 2) tiles.template zero<2>();
  if constexpr (kRowTiles == 2 && kDimTiles == 2) tiles.template zero<3>();
  for (int b = 0; b < kSpanBlocks; ++b) {
    if ((task.blocks >> b & 1) == 0) continue;
    const auto* weights = reinterpret_cast<const std::byte*>(task.weights) + static_cast<size_t>(b * kTileBytes);
    const std::byte* v = task.v[b] + static_cast<size_t>(dim) * kPairBytes;
    tiles.template load<4>(weights, kScoreStride);
    tiles.template load<6>(v, task.v_bytes);
    tiles.template dot_bf16<0, 4, 6>();
    if constexpr (kDimTiles == 2) {
      tiles.template load<7>(v + kTileBytes, task.v_bytes);
      tiles.template dot_bf16<1, 4, 7>();
    }
    if constexpr (kRowTiles == 2) {
      tiles.template load<5>(weights + kTileRows * kScoreStride, kScoreStride);
      tiles.template dot_bf16<2, 5, 6>();
      if constexpr (kDimTiles == 2) tiles.template dot_bf16<3, 5, 7>();
    }
  }
  std::byte* out = reinterpret_cast<std::byte*>(task.out + dim);
  tiles.template store<0>(out, task.out_bytes);
  if constexpr (kDimTiles == 2) tiles.template store<1>(out + kTileBytes, task.out_bytes);
  if constexpr (kRowTiles == 2) {
    out += kTileRows * task.out_bytes;
    tiles.template store<2>(out, task.out_bytes);
    if constexpr (kDimTiles == 2) tiles.template store<3>(out + kTileBytes, task.out_bytes);
  }
}

template <int kRowTiles, class Tiles>
inline void value_dims(Tiles& tiles, const ValueTiles& task, int head_dim) {
  int dim = 0;
  for (; dim + 2 * kLanes <= head_dim; dim += 2 * kLanes) value_tiles<kRowTiles, 2>(tiles, task, dim);
  if (dim < head_dim) value_tiles<kRowTiles, 1>(tiles, task, dim);
}

// Scores of all rows, as dots; every tile whole, or of the n_rows <= 16 there are.
template <class Tiles>
inline void score_all(Tiles& tiles, const SpanWork& work, const TileOperands& operands) {
  const int n_rows = work.args.n_rows;
  const int whole = tile_rows(n_rows);
  tiles.configure(tiles_for(std::min(whole, 2 * kTileRows)));
  const uint32_t blocks = union_of_blocks(work, 0, n_rows);
  for (int b = 0; b < kSpanBlocks; ++b) {
    if ((blocks >> b & 1) == 0) continue;
    prefetch_bytes(work.ahead[b], 0, work.args.kv.layer.v);
    const std::byte* k = key_tiles(work, operands, b);
    for (int row = 0; row < whole; row += 2 * kTileRows) {
      if ((union_of_blocks(work, row, std::min(row + 2 * kTileRows, n_rows)) >> b & 1) == 0) continue;
      float* scores = work.scores + row * kSpanTokens + b * kv::kBlockTokens;
      if (row + kTileRows < whole) {
        score_tiles<2>(tiles, operands, row, k, scores);
      } else {
        score_tiles<1>(tiles, operands, row, k, scores);
      }
    }
  }
}

// Softmax and values of up to two tiles of rows.
template <class Tiles>
inline void finish_rows(Tiles& tiles, const SpanWork& work, ValueTiles& task, Range rows, float* partial) {
  const int head_dim = work.args.kv.head_dim;
  const int stride = partial_floats(head_dim);
  task.blocks = union_of_blocks(work, rows.begin, rows.end);
  softmax_rows<TileOrder>(work, rows, partial);
  for (int r = rows.begin; r < rows.end; ++r) clear_unseen_weights<TileOrder>(work, r, task.blocks);
  if (task.blocks == 0) return;
  task.weights = work.scores + rows.begin * kSpanTokens;
  task.out = partial + rows.begin * stride + kPartialHeader;
  tiles.configure(tiles_for(rows.size()));
  if (rows.size() > kTileRows) {
    value_dims<2>(tiles, task, head_dim);
  } else {
    value_dims<1>(tiles, task, head_dim);
  }
  for (int r = rows.begin; r < rows.end; ++r) unite_zeros(head_dim, partial + r * stride + kPartialHeader);
}

template <class Tiles>
inline void attention_span_tiles(const AttentionArgs& args, int span, float* partial, std::byte* scratch) {
  const SpanWork work(args, span, scratch);
  const TileOperands operands(args.kv.head_dim, scratch);
  prepare_scales(work);
  for (int t = 0; t < kSpanTokens; t += kLanes) {
    store(work.k_scales + t, mul(splat(args.scale), load(work.k_scales + t)));  // amount * s_k
  }
  Tiles tiles;
  score_all(tiles, work, operands);

  const auto pair_bytes = static_cast<size_t>(args.kv.head_dim) * kPairBytes;
  ValueTiles task{.weights = nullptr,
                  .blocks = union_of_blocks(work, 0, args.n_rows),
                  .v = {},
                  .v_bytes = pair_bytes,
                  .out = nullptr,
                  .out_bytes = static_cast<size_t>(partial_floats(args.kv.head_dim)) * sizeof(float)};
  for (int b = 0; b < kSpanBlocks; ++b) {
    if ((task.blocks >> b & 1) == 0) continue;
    task.v[b] = args.kv.v(work.first_block + b);
    prefetch_bytes(work.ahead[b], args.kv.layer.v, args.kv.layer.head_bytes);
    if (args.kv.layer.format.v == kv::KvType::kBf16) continue;
    std::byte* widened = operands.v + static_cast<size_t>(b) * kTilePairs * pair_bytes;
    if (args.kv.layer.format.v == kv::KvType::kInt4) {
      widen_value_nibbles(task.v[b], args.kv.head_dim, widened);
    } else {
      widen_quads(task.v[b], kv::kBlockTokens / 4, args.kv.head_dim, widened);
    }
    task.v[b] = widened;
  }
  for (int r = 0; r < args.n_rows; r += 2 * kTileRows) {
    finish_rows(tiles, work, task, {r, std::min(r + 2 * kTileRows, args.n_rows)}, partial);
  }
}

#include "kernels/amx/end.h"

namespace pagoda::kernels {

void fill_attention_amx(KernelTable& table) {
  fill_attention_avx512(table);
  table.attention_prepare[static_cast<int>(Arithmetic::kBf16)] = amx::attention_prepare_tiles;
  table.attention_span[static_cast<int>(Arithmetic::kBf16)] = amx::attention_span_tiles<AmxTiles>;
}

void use_emulated_tiles(KernelTable& table) {
  table.attention_prepare[static_cast<int>(Arithmetic::kBf16)] = amx::attention_prepare_tiles;
  table.attention_span[static_cast<int>(Arithmetic::kBf16)] = amx::attention_span_tiles<EmulatedTiles>;
}

}  // namespace pagoda::kernels
