// What a model's KV formats cost, measured once and kept: `pagoda inspect --probe` writes it, `--kv-format auto` reads it at load.
// One small text file per (model file, arithmetic, layout id, numerics revision), named after a fingerprint of these, checksummed, and
// replaced whole. A file that is damaged, or of something else, is as if there were none, and says so.
// Probes of the recipes' models are shipped: the same texts one after the other (models/kv_probes.txt), found by the same fingerprint. What was
// probed here wins.
// Errors: writing only.     Cost: 3 KiB of each tensor is read for the fingerprint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/error.h"
#include "engine/config.h"
#include "weights/gguf.h"

namespace pagoda::engine {

// From bf16 K and V, on the same tokens.
struct KvDistance {
  double delta_ppl = 0;  // relative: 0.003 is 0.3 %
  double mean_kl = 0;    // nats
  double same_top = 1;   // share of rows
  friend bool operator==(const KvDistance&, const KvDistance&) = default;
};

// What is left of a distance where the noise floor, the reference's own distance from itself computed with other roundings, is taken away.
// The change of perplexity has no floor: noise moves it either way.
KvDistance beyond(const KvDistance& distance, const KvDistance& noise);

// What a format has to keep on a model: of what `beyond` leaves.
struct KvGate {
  double delta_ppl = 0.003;
  double mean_kl = 0.003;
  double same_top = 0.985;
};
bool passes(const KvDistance& distance, const KvGate& gate = {});
std::string to_string(const KvDistance& distance);  // "perplexity +0.05 %, mean KL 0.00041, same top token 99.0 %"

struct KvVerdict {
  std::string format;
  KvDistance distance;
  friend bool operator==(const KvVerdict&, const KvVerdict&) = default;
};

struct KvProbe {
  std::string table;  // what auto takes, as models::layer_formats reads it; among the verdicts
  std::vector<KvVerdict> verdicts;
  int64_t n_tokens = 0;
  int64_t unix_s = 0;

  const KvVerdict* find(std::string_view format) const;  // nullptr: not measured
  friend bool operator==(const KvProbe&, const KvProbe&) = default;
};

// The first 128 bits of a SHA-256, as model_root of a cache that is all bf16.
Result<Hash128> probe_key(const weights::Gguf& gguf, kernels::Arithmetic arithmetic);

std::filesystem::path probe_path(const std::filesystem::path& folder, const Hash128& key);
// `folder` is made if it is not there.
Status write_probe(const std::filesystem::path& folder, const Hash128& key, const KvProbe& probe);
std::optional<KvProbe> read_probe(const std::filesystem::path& folder, const Hash128& key);

// A file's text; empty where it is not whole, or not of `key`.
std::string probe_text(const Hash128& key, const KvProbe& probe);
std::optional<KvProbe> parse_probe(std::string_view text, const Hash128& key);

enum class KvProbeOrigin : uint8_t { kProbedHere, kShipped };
std::string_view to_string(KvProbeOrigin origin);  // "probed", "shipped"

struct FoundKvProbe {
  KvProbe probe;
  KvProbeOrigin origin;
};
std::optional<FoundKvProbe> find_probe(const KvProbeSources& sources, const Hash128& key);

// What "auto" is by a probe: its table, or bf16 where that fails the gate.
std::string auto_format(const KvProbe& probe);

// Makes config.kv_format what is probed: "auto" becomes the table, if there is one and it passes the gate; a format that failed is warned
// about. Without a probe nothing changes.
void apply_probe(const KvProbeSources& sources, const weights::Gguf& gguf, EngineConfig& config);

}  // namespace pagoda::engine
