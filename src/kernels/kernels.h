// The kernels: every computation over rows of numbers, once per instruction set, all with the same bits.
// This is the only header of the folder that others include. Rules (design: numerics):
//  - a row's result depends on that row alone: not on how many rows, which range or which thread computes it;
//  - int8 and f32 results are the same bits on every instruction set, bf16 too; products that are fused say so (fma), nothing else is;
//  - no kernel allocates, locks, logs or spawns; each takes a range and scratch, and runs with round-to-nearest-even, FTZ and DAZ
//    (set_float_mode); exp, tanh and rsqrt are kernels/math.h's polynomials everywhere.
// Shapes: row-major [rows, cols]; `ld` is the distance between rows in elements. Ranges are half-open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kv/layout.h"
#include "kv/view.h"
#include "tensor/panel.h"

namespace pagoda::kernels {

// Raised by any commit that changes a bit of any arithmetic: part of every key under which K and V are kept.
inline constexpr uint32_t kNumericsRevision = 3;

// kAmx is kAvx512 with AMX-BF16 tiles.
enum class Isa : uint8_t { kRef, kAvx2, kAvx512, kAmx };
enum class Arithmetic : uint8_t { kInt8, kF32, kBf16 };
inline constexpr int kArithmetics = 3;

struct Range {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// Activations of int8 arithmetic: per 32 columns d = amax / 127, inv = 127 / amax or 0 where d is (f32, rounded once),
// q = round-half-even(x * inv) within +-127; sums16 holds the sum of q over each 16 columns.
struct QuantRows {
  int8_t* q = nullptr;        // [n_rows, n_cols]
  float* d = nullptr;         // [n_rows, n_cols / 32]
  int16_t* sums16 = nullptr;  // [n_rows, n_cols / 16]
  int n_cols = 0;
};

// Quantized rows as the inner loop for weights of one type reads them: what pack_rows made. An instruction set has a form of its own.
struct PackedRows {
  const std::byte* data = nullptr;  // [packed_bytes(n_cols, rows.size())]
  Range rows;
  tensor::DType type = tensor::DType::kF32;
};

// Input of a matmul: f32 rows, and the form that the arithmetic wants.
struct MatmulInput {
  const float* x = nullptr;  // [n_rows, ld]
  int ld = 0;
  QuantRows quant;                 // all null but in int8 arithmetic
  const uint16_t* bf16 = nullptr;  // [n_rows, n_cols of the weight], in bf16 arithmetic
  PackedRows packed = {};  // may be absent, or of other rows or another type: the matmul then packs `quant` for itself
};

// Blocks that the thread attends to next, of the same layer: they are asked for while a call's last span is computed.
struct AttentionNext {
  const std::byte* const* blocks = nullptr;  // an entry may be null
  int n_blocks = 0;
  size_t head_offset = 0;  // as in KvView
};

// The rows of queries that share one KV head, against one sequence's cached tokens. Row r sees token t iff
// t <= position[r] and (window == 0 or t > position[r] - window).
struct AttentionArgs {
  const float* q = nullptr;              // row r's query is q + row_offset[r], [head_dim], after rope
  float* out = nullptr;                  // row r's result goes to out + row_offset[r], [head_dim]; may be q itself
  const uint32_t* row_offset = nullptr;  // [n_rows], in floats; the same for q and out
  const int32_t* position = nullptr;     // [n_rows], absolute
  int n_rows = 0;
  kv::KvView kv;
  int window = 0;        // tokens; 0 = all
  float scale = 1.0f;    // of q.k
  float softcap = 0.0f;  // s = cap * tanh(s / cap); 0 = none
  AttentionNext next = {};
};

// A context is cut at absolute multiples of 8 blocks into spans; a row folds its spans from its first to its last, left to right.
inline constexpr int kSpanBlocks = 8;
inline constexpr int kSpanTokens = kSpanBlocks * kv::kBlockTokens;

// Most rows that one attention call takes; callers tile longer lists.
inline constexpr int kAttentionMaxRows = 64;

// Unmerged result of one row over some spans, [2 + head_dim] f32: m (maximum score), l (sum of exp(s - m)), O (unnormalised).
inline constexpr int kPartialHeader = 2;

// Rotation of adjacent pairs (x[2i], x[2i+1]) or of halves (x[i], x[i + rope_dim/2]).
enum class RopeStyle : uint8_t { kAdjacent, kHalves };

enum class Activation : uint8_t { kSilu, kGeluTanh };

// Logits are summed, searched and sampled in fixed tiles.
inline constexpr int kLogitsTile = 1024;
struct LogitTile {
  float max = 0;
  int32_t index = 0;
};
// The tile with the largest value, the first of equals.  Requires at least one.
inline LogitTile largest_tile(std::span<const LogitTile> tiles) {
  LogitTile best = tiles.front();
  for (const LogitTile& tile : tiles) {
    if (tile.max > best.max) best = tile;
  }
  return best;
}
struct ExpSums {
  float mass = 0;      // sum of exp(e)
  float exponent = 0;  // sum of exp(e) * e
};

struct KernelTable {
  Isa isa = Isa::kRef;

  // ---- rows of activations -------------------------------------------------------------------------------------------------
  // Rows [rows) and columns [cols) of x [*, ld] into the same place of out, as QuantRows says; cols on multiples of 32.
  // A column range lets the thread that produced those columns quantize them without a barrier.
  void (*quantize_rows)(const float* x, int ld, Range rows, Range cols, QuantRows out);
  // The same range as bf16, rounded to nearest even, denormals to 0, as VCVTNE2PS2BF16 does; out [*, ld_out].
  void (*bf16_rows)(const float* x, int ld, Range rows, Range cols, uint16_t* out, int ld_out);
  // out[r] = x[r] * (1 / sqrt(mean(x[r]^2) + eps)) * weight, sums in 16 lanes and one tree; x and out may alias.
  void (*rms_norm)(const float* x, int ld_x, const float* weight, float eps, int n_cols, Range rows, float* out,
                   int ld_out);
  // x[r] += y[r].
  void (*add)(float* x, int ld_x, const float* y, int ld_y, int n_cols, Range rows);
  // x[r] += bias.
  void (*add_bias)(float* x, int ld, const float* bias, int n_cols, Range rows);
  // x[r] *= factor.
  void (*scale)(float* x, int ld, float factor, int n_cols, Range rows);
  // out[r] = act(gate[r]) * up[r]; out may alias gate.
  void (*gated[2])(const float* gate, const float* up, int ld_in, int n_cols, Range rows, float* out,
                   int ld_out);  // by Activation
  // Rotates n_heads heads of each row in place by the row's angles: cos_sin [rope_dim / 2][2] at table + position[r] * rope_dim.
  void (*rope[2])(float* x, int ld, int n_heads, int head_dim, int rope_dim, const float* table,
                  const int32_t* position, Range rows);  // by RopeStyle

  // ---- weights ---------------------------------------------------------------------------------------------------------------
  // y[r, n] = sum over k ascending of x[r, k] * w[n, k], for rows [rows) and the outputs of panels [panels); y [*, ld_y], written only
  // where n < n_rows.  scratch >= matmul_scratch_bytes(n_cols).  Int8 arithmetic computes float weight types as f32.
  // bf16: w rounded to bf16; per 32 columns an even and an odd fma chain from zero, then acc = acc + (even + odd), as TDPBF16PS.
  void (*matmul[kArithmetics])(const tensor::PanelMatrix& w, Range panels, const MatmulInput& x, Range rows, float* y,
                               int ld_y,
                               std::byte* scratch);  // by Arithmetic
  // Rows [rows) of x for matmuls of exactly these rows with weights of a quantized type: once for all that share an input.
  PackedRows (*pack_rows)(tensor::DType type, const QuantRows& x, Range rows, std::byte* out);
  // One row of w, dequantized, into out [n_cols]: the embedding of a token, read from the same panels as the LM head.
  void (*gather_row)(const tensor::PanelMatrix& w, int row, float* out);

  // ---- cache -----------------------------------------------------------------------------------------------------------------
  // Writes one token's K and V rows [head_dim] of one KV head into slot [0, 32) of a block: `head` is the block's address + head offset.
  // Touches no byte of other slots, so that two threads may write two slots of one block.
  void (*kv_write)(const float* k, const float* v, int head_dim, const kv::LayerLayout& layer, std::byte* head,
                   int slot);
  // The queries of args as the arithmetic wants them, into scratch: before the attention_span calls with the same args and scratch.
  void (*attention_prepare[kArithmetics])(const AttentionArgs& args, std::byte* scratch);  // by Arithmetic
  // One span [span] for all rows of args; partial [n_rows, 2 + head_dim].  A row that sees nothing in the span gets m = -inf, l = 0, O = 0.
  // n_rows <= kAttentionMaxRows; scratch >= attention_scratch_bytes(head_dim), with the prepared queries.
  // int8, over integer V: the weights w = p * s_v become 15-bit integers over the row's largest in the span (int8_rule.h), P.V is exact.
  // bf16: q, and w after its own rounding, are rounded to bf16; q.K per 32 dims and P.V per block add as the matmul does. There
  // V of a block's unseen slots must be finite (it is multiplied by 0).
  void (*attention_span[kArithmetics])(const AttentionArgs& args, int span, float* partial,
                                       std::byte* scratch);  // by Arithmetic
  // into[r] = merge(into[r], next[r]): one step of the left fold.  A next that saw nothing changes no bit of into, and the reverse.
  void (*attention_merge)(float* into, const float* next, int n_rows, int head_dim);
  // out + row_offset[r] = O / l of partial[r], rotated back (rotation.h) where V is integers.
  void (*attention_finish)(const AttentionArgs& args, const float* partial);

  // ---- logits ------------------------------------------------------------------------------------------------------------------
  // Tile i of x is [i * kLogitsTile, ...): its largest value and that value's lowest index, counted from x.  n > 0.
  void (*logit_tiles)(const float* x, int n, LogitTile* tiles);
  // out[i] = exp(e), e = (x[i] - max) * scale, x[i] <= max; exactly 0 where e is below -87.3 or NaN.  Sums in 16 lanes and one tree.
  ExpSums (*exp_sums)(const float* x, int n, float max, float scale, float* out);
  // The i with low <= x[i] < high, ascending, each plus `base`, into out, which has room for n; returns how many.
  int (*find_between)(const float* x, int n, float low, float high, int32_t base, int32_t* out);
  // x = cap * tanh(x / cap).
  void (*softcap)(float* x, int n, float cap);
  // Index of the largest value, the lowest on ties.  n > 0.
  int (*argmax)(const float* x, int n);
  // log(sum(exp(x))), over fixed tiles of 1,024 values, folded left to right.
  double (*log_sum_exp)(const float* x, int n);
};

size_t matmul_scratch_bytes(int n_cols);
constexpr size_t kPackedCellBytes = 44;  // of a row, at most
constexpr size_t packed_bytes(int n_cols, int n_rows) {
  return static_cast<size_t>(n_cols / tensor::kCellCols) * static_cast<size_t>(n_rows) * kPackedCellBytes;
}
size_t attention_scratch_bytes(int head_dim);

// Spans that any row of args can see: [first, last).  Empty only if n_rows == 0.
Range visible_spans(const AttentionArgs& args);

// Floats of one row's partial.
constexpr int partial_floats(int head_dim) { return kPartialHeader + head_dim; }

// Folds spans [spans) of args in order into partial [n_rows, partial_floats].  Folding stops being exact in another order: who does
// not have a row's first span keeps each span's partial apart (attention_span) and leaves the merging to who has.
void attention_fold(const KernelTable& table, Arithmetic arithmetic, const AttentionArgs& args, Range spans,
                    float* partial, std::byte* scratch);

// All spans of args, folded in order, into out: what one thread does with a work item that it has whole.
// scratch >= attention_scratch_bytes(head_dim).
void attention(const KernelTable& table, Arithmetic arithmetic, const AttentionArgs& args, std::byte* scratch);

// Instruction sets this machine can run (CPUID and XCR0), from the definition to the best.
std::vector<Isa> supported_isas();
Isa best_isa();
const KernelTable& kernel_table(Isa isa);  // CHECKs that the machine supports it

std::string_view to_string(Isa isa);
std::string_view to_string(Arithmetic arithmetic);
// "auto" gives the best; an unknown or unsupported name says which there are.
Result<Isa> parse_isa(std::string_view name);
// "auto" is bf16 where the best instruction set has AMX, else int8: a pure function of the machine and the options.
Result<Arithmetic> parse_arithmetic(std::string_view name, Isa isa);

// Whether this machine's AMX tiles give the bits of ref, on a matmul whose sums change in any other order. Some milliseconds; sets the
// calling thread's float mode.
enum class SelfTest : uint8_t { kAgrees, kDiffers, kNotHere };
SelfTest amx_self_test();
std::string_view to_string(SelfTest result);

// Round to nearest even, FTZ and DAZ, for the calling thread. Every compute thread and kernel test calls it once.
void set_float_mode();

}  // namespace pagoda::kernels
