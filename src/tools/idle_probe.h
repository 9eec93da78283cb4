// The probe of KV formats (kv_probing.h) as work for an engine's idle times: where `auto` has neither a probe of this model nor one under way,
// it is measured a few rows at a time beside what is served, and kept for the next start. What runs keeps its formats.
// Left out, with a word on the log, where a limit or the machine has no memory for it.
#pragma once

#include "engine/config.h"
#include "engine/idle_work.h"

namespace pagoda::tools {

// For EngineConfig::idle. `config`: as the engine was asked for, with its folder of probes.
std::function<std::unique_ptr<engine::IdleWork>(const engine::StepRunner&)> idle_probe(engine::EngineConfig config);

}  // namespace pagoda::tools
