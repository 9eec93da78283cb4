#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pagoda::models {
namespace {

// The (fractional) pair index whose wavelength makes `turns` turns in the original context. Peng et al. 2023 (YaRN), sec. 3.2.
double correction_pair(const weights::RopeConfig& config, double turns) {
  return config.dim * std::log(static_cast<double>(config.original_context) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(config.freq_base));
}

// How much of pair i keeps its own frequency: 1 for fast pairs, 0 for slow ones.
double yarn_ramp(const weights::RopeConfig& config, int pair) {
  const double low = std::max(0.0, std::floor(correction_pair(config, config.beta_fast)));
  const double high = std::min(config.dim - 1.0, std::ceil(correction_pair(config, config.beta_slow)));
  return 1 - std::clamp((pair - low) / std::max(0.001, high - low), 0.0, 1.0);
}

double scaled(const weights::RopeConfig& config, int pair, double frequency) {
  switch (config.scaling) {
    case weights::RopeScaling::kNone:
      return frequency;
    case weights::RopeScaling::kLinear:
      return frequency / config.factor;
    case weights::RopeScaling::kLlama3:
      return frequency / config.freq_factors[static_cast<size_t>(pair)];
    case weights::RopeScaling::kYarn: {
      const double keep = config.ext_factor * yarn_ramp(config, pair);
      return frequency * (keep + (1 - keep) / config.factor);
    }
  }
  return frequency;
}

}  // namespace

RopeTable::RopeTable(const weights::RopeConfig& config, Layers layers) {
  const double base = layers == Layers::kGlobal ? config.freq_base : config.local_freq_base;
  for (int pair = 0; pair < config.dim / 2; ++pair) {
    const double frequency = std::pow(base, -2.0 * pair / config.dim);
    frequencies_.push_back(layers == Layers::kGlobal ? scaled(config, pair, frequency) : frequency);
  }
  if (layers == Layers::kGlobal) magnitude_ = config.magnitude;
}

void RopeTable::fill(std::span<const int32_t> positions, float* out) const {
  for (const int32_t position : positions) {
    for (const double frequency : frequencies_) {
      const double angle = position * frequency;
      *out++ = static_cast<float>(std::cos(angle) * magnitude_);
      *out++ = static_cast<float>(std::sin(angle) * magnitude_);
    }
  }
}

}  // namespace pagoda::models
