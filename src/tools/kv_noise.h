// The noise floor of a comparison: the same model and format once more, with one rounding different in every norm, as another machine's or
// another engine's would be. What that changes is what no format can be better than: nothing to speak of in f32 arithmetic, but int8
// activations turn a last bit into another code here and there, and a few layers make a noise of it as loud as their own rounding.
#pragma once

#include <cmath>

#include "kernels/kernels.h"

namespace pagoda::tools {

// As KernelTable::rms_norm, but each row's squares are added in double, one after another.
inline void rms_norm_in_double(const float* x, int ld_x, const float* weight, float eps, int n_cols,
                               kernels::Range rows, float* out, int ld_out) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* from = x + static_cast<ptrdiff_t>(r) * ld_x;
    float* to = out + static_cast<ptrdiff_t>(r) * ld_out;
    double squares = 0;
    for (int i = 0; i < n_cols; ++i) squares += static_cast<double>(from[i]) * static_cast<double>(from[i]);
    const auto factor = static_cast<float>(1 / std::sqrt(squares / n_cols + static_cast<double>(eps)));
    for (int i = 0; i < n_cols; ++i) to[i] = from[i] * factor * weight[i];
  }
}

// The kernels with that norm.
inline kernels::KernelTable noisy(kernels::KernelTable table) {
  table.rms_norm = rms_norm_in_double;
  return table;
}

}  // namespace pagoda::tools
