// The one horizontal sum of the numerics: 16 virtual lanes, value i in lane i % 16, and a fixed tree (lane i + lane i +
// 8, + 4, + 2, + 1).
#pragma once

namespace pagoda::kernels::ref {

struct LaneSum {
  static constexpr int kLanes = 16;
  float lane[kLanes] = {};

  float total() const {
    float sum[kLanes];
    for (int i = 0; i < kLanes; ++i) sum[i] = lane[i];
    for (int half = kLanes / 2; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) sum[i] = sum[i] + sum[i + half];
    }
    return sum[0];
  }
};

}  // namespace pagoda::kernels::ref
