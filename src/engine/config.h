// What starts an engine. Filled by cmd from the option table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "engine/idle_work.h"
#include "engine/request.h"
#include "kernels/kernels.h"

namespace pagoda::engine {

enum class KvReuse : uint8_t { kOn, kOff };      // off: the whole prefix is recomputed for every token
enum class PrefixCache : uint8_t { kOn, kOff };  // off: blocks do not outlive their request, and none are shared

// Where KV blocks go besides RAM.
struct TierConfig {
  std::filesystem::path disk_dir{};     // empty: no disk tier
  uint64_t disk_bytes = 0;              // budget; 0: a quarter of what is free there, at most 64 GiB
  uint64_t disk_write_bytes_per_s = 0;  // 0: as fast as it goes
  std::string redis_url{};              // empty: no Redis tier
  int64_t redis_ttl_seconds = 0;        // 0: until the server evicts it
  std::filesystem::path secret{};       // file (secret.h); empty: one in disk_dir, or a random one for this process
  bool is_used() const { return !disk_dir.empty() || !redis_url.empty(); }
};

// How long conversations are kept, and how many (kv/sessions.h).
struct SessionConfig {
  int64_t ttl_us = int64_t{1800} * 1'000'000;
  size_t most_sessions = 4096;
  uint64_t most_table_bytes = uint64_t{64} << 20;  // beside the KV budget; under a memory limit: session_table_bytes
};

// What the table of sessions may take of a memory limit.
inline uint64_t session_table_bytes(uint64_t limit_bytes) {
  return std::clamp(limit_bytes / 128, uint64_t{1} << 20, uint64_t{8} << 20);
}

enum class Explain : uint8_t { kOn, kOff };  // off: no cache reports, no reuse distances

// So many times step_tokens are a step's rows while no stream waits for its next token: a prompt is 6 % faster in steps of 512 rows
// than of 256 with two threads, as each expands all weights for its share, and a stream would wait twice as long.
inline constexpr int kQuietFactor = 2;

// Where probes of KV formats (kv_probe.h) are: the user's own, and those that are shipped.
struct KvProbeSources {
  std::filesystem::path folder;
  std::string_view shipped;
};

struct EngineConfig {
  std::filesystem::path model_path;
  std::string served_name;    // empty: the file's name without .gguf
  std::string chat_template;  // overrides the file's; empty: the file's own
  kernels::Isa isa = kernels::Isa::kRef;
  kernels::Arithmetic arithmetic = kernels::Arithmetic::kInt8;
  std::string kv_format = "auto";  // models/kv_plan.h
  KvProbeSources probes;           // where Engine::create finds what "auto" is; none: the static rule
  KvReuse kv_reuse = KvReuse::kOn;
  PrefixCache prefix_cache = PrefixCache::kOn;  // without effect where kv_reuse is off
  Explain explain = Explain::kOn;
  std::optional<int> context_tokens;        // none: the trained context, or what memory allows
  std::optional<uint64_t> memory_bytes;     // of weights, overhead and KV together; none: the cgroup's limit
  std::optional<uint64_t> kv_memory_bytes;  // none: what memory_bytes leaves, or a quarter of what is available
  TierConfig tiers;                         // without effect where prefixes are not cached
  SessionConfig sessions;                   // likewise
  int n_threads = 0;                        // 0: the cores this process may use
  int step_tokens = 256;                    // rows of one step at most
  int chunk_tokens = 0;                     // rows of one prefill chunk at most; 0: what the step has left
  int max_queued = 1024;                    // waiting requests; more are refused as overloaded
  int max_running = 256;                    // sequences that compute at once
  int64_t target_itl_us = 0;                // of streams beside prompts (sched::SchedConfig::target_us)
  ContextPolicy context_policy{};           // of requests that name none
  IdleConfig idle{};                        // of an Engine
};

inline bool has_prefixes(const EngineConfig& config) {
  return config.prefix_cache == PrefixCache::kOn && config.kv_reuse == KvReuse::kOn;
}
inline bool has_tiers(const EngineConfig& config) { return has_prefixes(config) && config.tiers.is_used(); }

}  // namespace pagoda::engine
