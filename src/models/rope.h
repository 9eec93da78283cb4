// RopeTable: the angles of rotary position embedding, as cos and sin per row of a step.
// Frequencies and angles are computed in double, so that every machine rounds them to the same floats.
// Source: Su et al. 2021 (RoFormer); scaling as weights/model_config.h says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weights/model_config.h"

namespace pagoda::models {

class RopeTable {
 public:
  enum class Layers : uint8_t { kGlobal, kLocal };  // local: sliding-window layers have their own base and no scaling

  RopeTable(const weights::RopeConfig& config, Layers layers);

  int dim() const { return static_cast<int>(frequencies_.size()) * 2; }
  // out [positions.size(), dim/2, 2]: cos, sin.
  void fill(std::span<const int32_t> positions, float* out) const;

 private:
  std::vector<double> frequencies_;  // [dim/2] radians per position
  double magnitude_ = 1;
};

}  // namespace pagoda::models
