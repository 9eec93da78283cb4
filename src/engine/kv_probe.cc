#include "engine/kv_probe.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "base/whole_file.h"
#include "engine/model_root.h"
#include "models/kv_plan.h"

namespace pagoda::engine {
namespace {

constexpr std::string_view kHead = "pagoda KV probe 1";
constexpr std::string_view kSum = "xxh3 ";
constexpr size_t kMostBytes = 64 << 10;

std::string hex_of(const Hash128& key) { return to_hex(key.high) + to_hex(key.low); }

std::string head_of(const Hash128& key) { return fmt::format("{}\nkey {}\n", kHead, hex_of(key)); }

std::string sum_of(std::string_view text) { return to_hex(xxh3_64(std::as_bytes(std::span(text)))); }

template <typename T>
bool read_number(std::string_view& text, T& value) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(word.size() + 1, text.size()));
  return word;
}

bool read_line(std::string_view line, KvProbe& probe) {
  const std::string_view word = take_word(line);
  if (word == "tokens") return read_number(line, probe.n_tokens) && line.empty();
  if (word == "unix") return read_number(line, probe.unix_s) && line.empty();
  if (word == "auto") {
    probe.table = line;
    return !line.empty();
  }
  if (word != "format") return false;
  KvVerdict verdict{.format = std::string(take_word(line)), .distance = {}};
  KvDistance& d = verdict.distance;
  if (!read_number(line, d.delta_ppl) || !read_number(line, d.mean_kl) || !read_number(line, d.same_top)) return false;
  probe.verdicts.push_back(std::move(verdict));
  return line.empty();
}

// A format of every layer, or a table of as many layers as there are.
bool is_of_model(std::string_view format, const weights::Gguf& gguf, const weights::ModelConfig& config) {
  return models::layer_formats(format, models::k_bias_layers(gguf, config)).has_value();
}

// Among texts one after the other.
std::optional<KvProbe> probe_among(std::string_view texts, const Hash128& key) {
  const size_t begin = texts.find(head_of(key));
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view rest = texts.substr(begin);
  const size_t sum = std::min(rest.find(kSum), rest.size());
  return parse_probe(rest.substr(0, rest.find('\n', sum) + 1), key);
}

void apply_to_auto(const FoundKvProbe& found, EngineConfig& config) {
  const KvProbe& probe = found.probe;
  config.kv_format = auto_format(probe);
  if (config.kv_format != probe.table) {
    LOG_WARN("KV format auto: the probe's {} failed the quality gate, and is refused: K and V are kept in {}",
             probe.table, config.kv_format);
    return;
  }
  const KvVerdict* verdict = probe.find(probe.table);
  LOG_INFO("KV format auto: {} ({}: {} on {} tokens)", probe.table, to_string(found.origin),
           verdict == nullptr ? "the reference" : to_string(verdict->distance), probe.n_tokens);
}

}  // namespace

KvDistance beyond(const KvDistance& distance, const KvDistance& noise) {
  return {.delta_ppl = distance.delta_ppl,
          .mean_kl = distance.mean_kl - noise.mean_kl,
          .same_top = distance.same_top + (1 - noise.same_top)};
}

bool passes(const KvDistance& distance, const KvGate& gate) {
  return distance.delta_ppl <= gate.delta_ppl && distance.mean_kl <= gate.mean_kl && distance.same_top >= gate.same_top;
}

std::string to_string(const KvDistance& distance) {
  return fmt::format("perplexity {:+.2f} %, mean KL {:.5f}, same top token {:.1f} %", distance.delta_ppl * 100,
                     distance.mean_kl, distance.same_top * 100);
}

const KvVerdict* KvProbe::find(std::string_view format) const {
  const auto at = std::ranges::find(verdicts, format, &KvVerdict::format);
  return at == verdicts.end() ? nullptr : &*at;
}

Result<Hash128> probe_key(const weights::Gguf& gguf, kernels::Arithmetic arithmetic) {
  TRY_ASSIGN(const weights::ModelConfig config, weights::read_model_config(gguf));
  TRY_ASSIGN(const auto groups, models::plan_groups(gguf, config, "bf16"));
  return model_root(gguf, groups, arithmetic);
}

std::string probe_text(const Hash128& key, const KvProbe& probe) {
  std::string text =
      head_of(key) + fmt::format("unix {}\ntokens {}\nauto {}\n", probe.unix_s, probe.n_tokens, probe.table);
  for (const auto& [format, distance] : probe.verdicts) {
    text += fmt::format("format {} {} {} {}\n", format, distance.delta_ppl, distance.mean_kl, distance.same_top);
  }
  return text + fmt::format("{}{}\n", kSum, sum_of(text));
}

std::optional<KvProbe> parse_probe(std::string_view text, const Hash128& key) {
  const size_t end = text.rfind(kSum);
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view rest = text.substr(0, end);
  if (text.substr(end) != fmt::format("{}{}\n", kSum, sum_of(rest))) return std::nullopt;
  const std::string head = head_of(key);
  if (!rest.starts_with(head)) return std::nullopt;
  KvProbe probe;
  for (rest.remove_prefix(head.size()); !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (line.size() == rest.size() || !read_line(line, probe)) return std::nullopt;
    rest.remove_prefix(line.size() + 1);
  }
  if (probe.table.empty()) return std::nullopt;
  return probe;
}

std::filesystem::path probe_path(const std::filesystem::path& folder, const Hash128& key) {
  return folder / (hex_of(key) + ".txt");
}

Status write_probe(const std::filesystem::path& folder, const Hash128& key, const KvProbe& probe) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string text = probe_text(key, probe);
  return write_whole(probe_path(folder, key), std::as_bytes(std::span(text)), 0666);
}

std::optional<KvProbe> read_probe(const std::filesystem::path& folder, const Hash128& key) {
  const std::filesystem::path path = probe_path(folder, key);
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(kMostBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  std::optional<KvProbe> probe = parse_probe(text, key);
  if (!probe)
    LOG_WARN("{} is damaged or of something else, and is not used: pagoda inspect --probe renews it", path.string());
  return probe;
}

std::string_view to_string(KvProbeOrigin origin) { return origin == KvProbeOrigin::kShipped ? "shipped" : "probed"; }

std::optional<FoundKvProbe> find_probe(const KvProbeSources& sources, const Hash128& key) {
  if (auto own = read_probe(sources.folder, key)) return FoundKvProbe{std::move(*own), KvProbeOrigin::kProbedHere};
  if (auto shipped = probe_among(sources.shipped, key))
    return FoundKvProbe{std::move(*shipped), KvProbeOrigin::kShipped};
  return std::nullopt;
}

std::string auto_format(const KvProbe& probe) {
  const KvVerdict* verdict = probe.find(probe.table);
  return verdict != nullptr && passes(verdict->distance) ? probe.table : "bf16";
}

void apply_probe(const KvProbeSources& sources, const weights::Gguf& gguf, EngineConfig& config) {
  std::error_code ignored;
  if (sources.shipped.empty() && !std::filesystem::is_directory(sources.folder, ignored)) return;
  const auto model = weights::read_model_config(gguf);
  const auto key = probe_key(gguf, config.arithmetic);
  if (!model || !key) return;  // loading says why
  const std::optional<FoundKvProbe> found = find_probe(sources, *key);
  if (!found || !is_of_model(found->probe.table, gguf, *model)) return;
  if (config.kv_format == "auto") return apply_to_auto(*found, config);
  const KvVerdict* verdict = found->probe.find(config.kv_format);
  if (verdict == nullptr || passes(verdict->distance)) return;
  LOG_WARN("--kv-format {} failed the quality gate on this model when it was probed: {}", config.kv_format,
           to_string(verdict->distance));
}

}  // namespace pagoda::engine
