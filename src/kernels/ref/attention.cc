// Cache writes and attention: the definition, in plain loops.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/attention_args.h"
#include "kernels/bf16_rule.h"
#include "kernels/int8_rule.h"
#include "kernels/math.h"
#include "kernels/ref/lanes.h"
#include "kernels/rotation.h"
#include "kernels/table.h"
#include "tensor/float16.h"

namespace pagoda::kernels::ref {
namespace {

using kv::KvType;

float largest_magnitude(const float* x, int n) {
  float amax = 0.0f;
  for (int i = 0; i < n; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  return amax;
}

template <typename Index>
void write_int8(const float* x, int head_dim, std::byte* part, uint16_t* scale, Index index) {
  *scale = kv_scale(largest_magnitude(x, head_dim), kInt8Max);
  const float s = tensor::f16_to_f32(*scale);
  for (int i = 0; i < head_dim; ++i) part[index(i)] = static_cast<std::byte>(quantize_i8(x[i], s));
}

// Both halves of a byte are this token's: the low one is written first, and clears the high one.
template <typename Index>
void write_int4(const float* x, int head_dim, std::byte* part, uint16_t* scale, Index index) {
  *scale = kv_scale(largest_magnitude(x, head_dim), kInt4Max);
  const float s = tensor::f16_to_f32(*scale);
  for (int i = 0; i < head_dim; ++i) {
    const std::byte code{quantize_i4(x[i], s)};
    std::byte& at = part[index(i) / 2];
    at = index(i) % 2 == 0 ? code : at | code << 4;
  }
}

template <typename Index>
void write_bf16(const float* x, int head_dim, std::byte* part, Index index) {
  uint16_t* to = reinterpret_cast<uint16_t*>(part);
  for (int i = 0; i < head_dim; ++i) to[index(i)] = tensor::f32_to_bf16(x[i]);
}

template <typename Index>
void write_part(KvType type, const float* x, int head_dim, std::byte* part, uint16_t* scale, Index index) {
  if (type == KvType::kBf16) return write_bf16(x, head_dim, part, index);
  std::vector<float> row(x, x + head_dim);
  rotate(row.data(), head_dim);
  switch (type) {
    case KvType::kBf16:
      return;
    case KvType::kInt8:
      return write_int8(row.data(), head_dim, part, scale, index);
    case KvType::kInt4:
      return write_int4(row.data(), head_dim, part, scale, index);
  }
}

void kv_write(const float* k, const float* v, int head_dim, const kv::LayerLayout& layer, std::byte* head, int slot) {
  write_part(layer.format.k, k, head_dim, head, reinterpret_cast<uint16_t*>(head + layer.k_scales) + slot,
             [&](int dim) { return kv::k_index(layer.format.k, slot, dim); });
  write_part(layer.format.v, v, head_dim, head + layer.v, reinterpret_cast<uint16_t*>(head + layer.v_scales) + slot,
             [&](int dim) { return kv::v_index(layer.format.v, head_dim, slot, dim); });
}

// Element `index` of an integer part.
int integer_at(KvType type, const std::byte* part, size_t index) {
  if (type == KvType::kInt8) return static_cast<int8_t>(part[index]);
  const int both = std::to_integer<int>(part[index / 2]);
  return 2 * (index % 2 == 0 ? both & 15 : both >> 4) - 15;
}

// One token of the view, in elements (integers of the rotated row) and scales; a bf16 part has scale 1.
struct Token {
  const kv::KvView& view;
  int block;
  int slot;

  Token(const AttentionArgs& args, int span, int token)
      : view(args.kv), block(span * kSpanBlocks + token / kv::kBlockTokens), slot(token % kv::kBlockTokens) {}

  KvType k_type() const { return view.layer.format.k; }
  KvType v_type() const { return view.layer.format.v; }
  size_t k_at(int dim) const { return kv::k_index(k_type(), slot, dim); }
  size_t v_at(int dim) const { return kv::v_index(v_type(), view.head_dim, slot, dim); }
  int k_integer(int dim) const { return integer_at(k_type(), view.k(block), k_at(dim)); }
  int v_integer(int dim) const { return integer_at(v_type(), view.v(block), v_at(dim)); }
  float k(int dim) const {
    if (kv::is_scaled(k_type())) return static_cast<float>(k_integer(dim));
    return tensor::bf16_to_f32(reinterpret_cast<const uint16_t*>(view.k(block))[k_at(dim)]);
  }
  float v(int dim) const {
    if (kv::is_scaled(v_type())) return static_cast<float>(v_integer(dim));
    return tensor::bf16_to_f32(reinterpret_cast<const uint16_t*>(view.v(block))[v_at(dim)]);
  }
  float k_scale() const { return kv::is_scaled(k_type()) ? tensor::f16_to_f32(view.k_scales(block)[slot]) : 1.0f; }
  float v_scale() const { return kv::is_scaled(v_type()) ? tensor::f16_to_f32(view.v_scales(block)[slot]) : 1.0f; }
};

float as_bf16(float x) { return tensor::bf16_to_f32(round_bf16(x)); }

// bf16 arithmetic's sum of up to 32 products: two chains from zero, over the even and the odd ones, as TDPBF16PS.
class CellSum {
 public:
  void add(int i, float a, float b) { chain_[i & 1] = std::fma(a, b, chain_[i & 1]); }
  float total() const { return chain_[0] + chain_[1]; }

 private:
  float chain_[2] = {0.0f, 0.0f};
};
constexpr int kCell = 32;  // products

// A query as q.K takes it: rotated over integer K, then int8 per head row (int8 arithmetic over integer K), bf16 in bf16 arithmetic, else f32.
struct Query {
  std::vector<float> q;
  bool is_int8;
  bool is_bf16;
  float amount;  // scale, times the query's own scale where it is int8
  float own_scale = 1.0f;

  Query(const AttentionArgs& args, Arithmetic arithmetic, int row)
      : q(args.q + args.row_offset[row], args.q + args.row_offset[row] + args.kv.head_dim),
        is_int8(arithmetic == Arithmetic::kInt8 && kv::is_scaled(args.kv.layer.format.k)),
        is_bf16(arithmetic == Arithmetic::kBf16),
        amount(args.scale) {
    if (kv::is_scaled(args.kv.layer.format.k)) rotate(q.data(), args.kv.head_dim);
    if (!is_int8) return;
    own_scale = largest_magnitude(q.data(), args.kv.head_dim) / 127.0f;
    amount = own_scale * args.scale;
  }

  float dot(const Token& token, int head_dim) const {
    if (is_int8) {
      int32_t sum = 0;
      for (int d = 0; d < head_dim; ++d) sum += quantize_i8(q[d], own_scale) * token.k_integer(d);
      return static_cast<float>(sum);
    }
    float sum = 0.0f;
    if (is_bf16) {
      for (int cell = 0; cell < head_dim; cell += kCell) {
        CellSum products;
        for (int d = cell; d < std::min(cell + kCell, head_dim); ++d) products.add(d, as_bf16(q[d]), token.k(d));
        sum = sum + products.total();
      }
      return sum;
    }
    for (int d = 0; d < head_dim; ++d) sum = std::fma(q[d], token.k(d), sum);
    return sum;
  }
};

// score = dot * (amount * s_k), then the softcap.
float score(const AttentionArgs& args, const Query& query, const Token& token) {
  const float s = query.dot(token, args.kv.head_dim) * (query.amount * token.k_scale());
  return args.softcap == 0.0f ? s : softcap_f32(s, args.softcap);
}

// O of a row over the tokens it sees, w = p * s_v rounded to f32. int8 arithmetic over integer V: exact sums (int8_rule.h).
void add_values_int8(const AttentionArgs& args, int span, Range seen, const float* weights, float* out) {
  float largest = 0.0f;
  for (int t = seen.begin; t < seen.end; ++t) largest = weights[t] > largest ? weights[t] : largest;
  const float factor = weight_factor(largest);
  for (int d = 0; d < args.kv.head_dim; ++d) {
    int32_t sum = 0;
    for (int t = seen.begin; t < seen.end; ++t) {
      sum += quantize_weight(weights[t], factor) * Token(args, span, t).v_integer(d);
    }
    out[d] = static_cast<float>(sum) * (largest / kWeightMax);
  }
}

// f32 arithmetic, and int8 over bf16 V: one fma chain over tokens ascending.
void add_values(const AttentionArgs& args, int span, Range seen, const float* weights, float* out) {
  for (int t = seen.begin; t < seen.end; ++t) {
    const Token token(args, span, t);
    for (int d = 0; d < args.kv.head_dim; ++d) out[d] = std::fma(weights[t], token.v(d), out[d]);
  }
}

// bf16 arithmetic: w is rounded a second time, to bf16; O = O + (the sum of a block's products), block after block. The weight
// of a token of those blocks that the row does not see is 0.  O ends with one zero: adding blocks of zero weights changes nothing.
void add_values_bf16(const AttentionArgs& args, int span, Range seen, const float* weights, float* out) {
  for (int first = seen.begin / kCell * kCell; first < seen.end; first += kCell) {
    for (int d = 0; d < args.kv.head_dim; ++d) {
      CellSum products;
      for (int t = first; t < first + kCell; ++t) {
        const bool is_seen = seen.begin <= t && t < seen.end;
        products.add(t, is_seen ? as_bf16(weights[t]) : 0.0f, Token(args, span, t).v(d));
      }
      out[d] = out[d] + products.total();
    }
  }
  for (int d = 0; d < args.kv.head_dim; ++d) out[d] = out[d] + 0.0f;
}

void attend_row(const AttentionArgs& args, Arithmetic arithmetic, int span, int row, float* partial) {
  const Range seen = visible_tokens(args, row, span);
  float* out = partial + kPartialHeader;
  for (int d = 0; d < args.kv.head_dim; ++d) out[d] = 0.0f;
  partial[0] = kMinusInfinity;
  partial[1] = 0.0f;
  if (seen.size() == 0) return;

  const Query query(args, arithmetic, row);
  float scores[kSpanTokens];  // weights after the softmax
  float max = kMinusInfinity;
  for (int t = seen.begin; t < seen.end; ++t) {
    scores[t] = score(args, query, Token(args, span, t));
    max = scores[t] > max ? scores[t] : max;
  }
  max = max + 0.0f;  // one zero
  LaneSum sum;
  for (int t = seen.begin; t < seen.end; ++t) {
    const float p = exp_f32(scores[t] - max);
    float& lane = sum.lane[t % LaneSum::kLanes];
    lane = lane + p;
    scores[t] = p * Token(args, span, t).v_scale();
  }
  if (arithmetic == Arithmetic::kBf16) {
    add_values_bf16(args, span, seen, scores, out);
  } else if (arithmetic == Arithmetic::kInt8 && kv::is_scaled(args.kv.layer.format.v)) {
    add_values_int8(args, span, seen, scores, out);
  } else {
    add_values(args, span, seen, scores, out);
  }
  partial[0] = max;
  partial[1] = sum.total();
}

void attention_prepare(const AttentionArgs&, std::byte*) {}

template <Arithmetic kArithmetic>
void attention_span(const AttentionArgs& args, int span, float* partial, std::byte*) {
  for (int r = 0; r < args.n_rows; ++r) {
    attend_row(args, kArithmetic, span, r, partial + r * partial_floats(args.kv.head_dim));
  }
}

// m = max; a = exp(m_into - m), b = exp(m_next - m);  x = fma(x_next, b, x_into * a) for l and O.
void attention_merge(float* into, const float* next, int n_rows, int head_dim) {
  const int size = partial_floats(head_dim);
  for (int r = 0; r < n_rows; ++r, into += size, next += size) {
    if (next[0] == kMinusInfinity) continue;
    if (into[0] == kMinusInfinity) {
      std::memcpy(into, next, static_cast<size_t>(size) * sizeof(float));
      continue;
    }
    const float max = into[0] > next[0] ? into[0] : next[0];
    const float a = exp_f32(into[0] - max);
    const float b = exp_f32(next[0] - max);
    into[0] = max;
    for (int i = 1; i < size; ++i) into[i] = std::fma(next[i], b, into[i] * a);
  }
}

// A row that saw nothing gets zeros. O over integer V is rotated back.
void attention_finish(const AttentionArgs& args, const float* partial) {
  for (int r = 0; r < args.n_rows; ++r, partial += partial_floats(args.kv.head_dim)) {
    float* out = args.out + args.row_offset[r];
    const float sum = partial[1] == 0.0f ? 1.0f : partial[1];
    for (int d = 0; d < args.kv.head_dim; ++d) out[d] = partial[kPartialHeader + d] / sum;
    if (kv::is_scaled(args.kv.layer.format.v)) rotate(out, args.kv.head_dim);
  }
}

}  // namespace
}  // namespace pagoda::kernels::ref

namespace pagoda::kernels {

void fill_attention_ref(KernelTable& table) {
  table.kv_write = ref::kv_write;
  for (auto& prepare : table.attention_prepare) prepare = ref::attention_prepare;
  table.attention_span[static_cast<int>(Arithmetic::kInt8)] = ref::attention_span<Arithmetic::kInt8>;
  table.attention_span[static_cast<int>(Arithmetic::kF32)] = ref::attention_span<Arithmetic::kF32>;
  table.attention_span[static_cast<int>(Arithmetic::kBf16)] = ref::attention_span<Arithmetic::kBf16>;
  table.attention_merge = ref::attention_merge;
  table.attention_finish = ref::attention_finish;
}

}  // namespace pagoda::kernels
