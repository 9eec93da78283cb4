// Rows of activations: the definition, in plain loops.
#include <cmath>

#include "kernels/math.h"
#include "kernels/ref/lanes.h"
#include "kernels/table.h"

namespace pagoda::kernels::ref {
namespace {

const float* row_of(const float* x, int ld, int row) { return x + static_cast<ptrdiff_t>(row) * ld; }
float* row_of(float* x, int ld, int row) { return x + static_cast<ptrdiff_t>(row) * ld; }

// Fused: the squares into their lane. Then ((x * inverse) * weight), inverse = 1 / sqrt(sum / n_cols + eps).
void rms_norm(const float* x, int ld_x, const float* weight, float eps, int n_cols, Range rows, float* out,
              int ld_out) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* in = row_of(x, ld_x, r);
    float* to = row_of(out, ld_out, r);
    LaneSum squares;
    for (int i = 0; i < n_cols; ++i) {
      float& lane = squares.lane[i % LaneSum::kLanes];
      lane = std::fma(in[i], in[i], lane);
    }
    const float mean = squares.total() / static_cast<float>(n_cols);
    const float inverse = 1.0f / std::sqrt(mean + eps);
    for (int i = 0; i < n_cols; ++i) to[i] = (in[i] * inverse) * weight[i];
  }
}

void add(float* x, int ld_x, const float* y, int ld_y, int n_cols, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    float* to = row_of(x, ld_x, r);
    const float* from = row_of(y, ld_y, r);
    for (int i = 0; i < n_cols; ++i) to[i] = to[i] + from[i];
  }
}

void add_bias(float* x, int ld, const float* bias, int n_cols, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    float* to = row_of(x, ld, r);
    for (int i = 0; i < n_cols; ++i) to[i] = to[i] + bias[i];
  }
}

void scale(float* x, int ld, float factor, int n_cols, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    float* to = row_of(x, ld, r);
    for (int i = 0; i < n_cols; ++i) to[i] = to[i] * factor;
  }
}

template <float (*kActivation)(float)>
void gated(const float* gate, const float* up, int ld_in, int n_cols, Range rows, float* out, int ld_out) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* g = row_of(gate, ld_in, r);
    const float* u = row_of(up, ld_in, r);
    float* to = row_of(out, ld_out, r);
    for (int i = 0; i < n_cols; ++i) to[i] = kActivation(g[i]) * u[i];
  }
}

template <RopeStyle kStyle>
void rope(float* x, int ld, int n_heads, int head_dim, int rope_dim, const float* table, const int32_t* position,
          Range rows) {
  const int half = rope_dim / 2;
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* angles = row_of(table, rope_dim, position[r]);
    for (int h = 0; h < n_heads; ++h) {
      float* head = row_of(x, ld, r) + h * head_dim;
      for (int i = 0; i < half; ++i) {
        const bool adjacent = kStyle == RopeStyle::kAdjacent;
        rotate_pair(head + (adjacent ? 2 * i : i), head + (adjacent ? 2 * i + 1 : i + half), angles + 2 * i);
      }
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels::ref

namespace pagoda::kernels {

void fill_rows_ref(KernelTable& table) {
  table.rms_norm = ref::rms_norm;
  table.add = ref::add;
  table.add_bias = ref::add_bias;
  table.scale = ref::scale;
  table.gated[static_cast<int>(Activation::kSilu)] = ref::gated<silu_f32>;
  table.gated[static_cast<int>(Activation::kGeluTanh)] = ref::gated<gelu_tanh_f32>;
  table.rope[static_cast<int>(RopeStyle::kAdjacent)] = ref::rope<RopeStyle::kAdjacent>;
  table.rope[static_cast<int>(RopeStyle::kHalves)] = ref::rope<RopeStyle::kHalves>;
}

}  // namespace pagoda::kernels
