// What `pagoda inspect --probe` measures: which KV formats a model bears, and the cheapest table of formats by layer that passes the gate.
// In f32 arithmetic, where what a format costs is not drowned in the rounding of int8 activations (kv_noise.h): formats of every layer as they
// are; if q8 does not pass beyond doubt, K and V of one layer at a time; then tables that keep the worst of these in bf16, of which the one
// with the least bytes counts that passes by a standard error. In the arithmetic asked for it must not fail beyond doubt.
// auto chooses among bf16 and int8 alone: 4 bits change what a prefix hit reuses, so they are taken when asked for.
// Cost: minutes. Memory: the weights and up to kLanes caches of one window.
#pragma once

#include <optional>

#include "engine/config.h"
#include "engine/kv_probe.h"
#include "tools/kv_compare.h"

namespace pagoda::tools {

// For config.arithmetic. `in_f32`: what was found before in f32 arithmetic; where its table holds in config.arithmetic too, nothing is
// measured again.   Errors: as KvComparer's.
Result<engine::KvProbe> probe_formats(const engine::EngineConfig& config, const std::optional<engine::KvProbe>& in_f32,
                                      const KvProgress& progress);

// One layer's K or V, and what it costs to keep only that in int8.
struct LayerCost {
  int layer = 0;
  enum class Part : uint8_t { kK, kV } part = Part::kK;
  double kl = 0;
};

// The same on an engine's weights and threads, in pieces of a few rows: `pause` is called before each (KvComparer::set_pause).
struct ProbeBeside {
  const engine::StepRunner& loaded;
  std::function<bool()> pause;
};
Result<engine::KvProbe> probe_formats(const engine::EngineConfig& config, const ProbeBeside& beside);
// What that takes beside the engine, at most.
uint64_t beside_bytes(const engine::StepRunner& loaded, const weights::Gguf& gguf, const engine::EngineConfig& config);

// The table of n_layers that keeps the n_kept first of `costs` in bf16, all else in int8.
std::string table_without(std::span<const LayerCost> costs, size_t n_kept, int n_layers);

}  // namespace pagoda::tools
