#include "models/kv_plan.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "models/loader.h"

namespace pagoda::models {
namespace {

using kv::KvType;

enum class BiasedK : uint8_t { kAsNamed, kBf16 };

struct NamedFormat {
  std::string_view name;
  kv::LayerFormat format;
  BiasedK biased_k;
};

constexpr NamedFormat kNamedFormats[] = {
    {"auto", {KvType::kInt8, KvType::kInt8}, BiasedK::kBf16},
    {"bf16", {KvType::kBf16, KvType::kBf16}, BiasedK::kAsNamed},
    {"k16v8", {KvType::kBf16, KvType::kInt8}, BiasedK::kAsNamed},
    {"k8v16", {KvType::kInt8, KvType::kBf16}, BiasedK::kAsNamed},
    {"q8", {KvType::kInt8, KvType::kInt8}, BiasedK::kAsNamed},
    {"k16v4", {KvType::kBf16, KvType::kInt4}, BiasedK::kAsNamed},
    {"k8v4", {KvType::kInt8, KvType::kInt4}, BiasedK::kBf16},
    {"q4", {KvType::kInt4, KvType::kInt4}, BiasedK::kBf16},
};
constexpr size_t kFirstPlain = 1;  // "auto" is no format of one layer

// Of those that a quality gate lets through without a probe.
constexpr std::string_view kBestFirst[] = {"auto"};

// "k16v8*2,q8" -> three layers.
Result<std::vector<kv::LayerFormat>> parse_table(std::string_view table, size_t n_layers) {
  const auto plain = std::span(kNamedFormats).subspan(kFirstPlain);
  std::vector<kv::LayerFormat> formats;
  for (size_t begin = 0; begin <= table.size();) {
    const std::string_view run = table.substr(begin, table.find(',', begin) - begin);
    const std::string_view name = run.substr(0, run.find('*'));
    const std::string_view count = name.size() < run.size() ? run.substr(name.size() + 1) : "1";
    size_t n = 0;
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), n);
    const auto known = std::ranges::find(plain, name, &NamedFormat::name);
    if (known == plain.end() || error != std::errc() || end != count.data() + count.size() || n == 0 || n > n_layers)
      return fail(ErrorCode::kInvalidArgument, "KV formats \"{}\": \"{}\" is no format of some layers", table, run);
    formats.insert(formats.end(), n, known->format);
    begin += run.size() + 1;
  }
  if (formats.size() != n_layers)
    return fail(ErrorCode::kInvalidArgument, "KV formats \"{}\" are of {} layers; the model has {}", table,
                formats.size(), n_layers);
  return formats;
}

std::string note_of(std::string_view format, std::span<const AttentionGroup> groups) {
  const std::string stored = format_table(groups);
  if (stored.substr(0, stored.find('*')) == format && stored.find(',') == std::string::npos) return "";
  return format == "auto" ? stored : "as " + stored;
}

}  // namespace

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const NamedFormat& known : kNamedFormats) names.emplace_back(known.name);
  return names;
}

Result<std::vector<kv::LayerFormat>> layer_formats(std::string_view format, std::span<const uint8_t> k_bias) {
  if (format.find_first_of("*,") != std::string_view::npos) return parse_table(format, k_bias.size());
  const auto* known = std::ranges::find(kNamedFormats, format, &NamedFormat::name);
  if (known == std::end(kNamedFormats)) {
    return fail(ErrorCode::kInvalidArgument, "unknown KV format \"{}\"; there are {}", format,
                fmt::join(format_names(), ", "));
  }
  std::vector<kv::LayerFormat> formats(k_bias.size(), known->format);
  for (size_t layer = 0; layer < formats.size(); ++layer) {
    if (known->biased_k == BiasedK::kBf16 && k_bias[layer] != 0) formats[layer].k = KvType::kBf16;
  }
  return formats;
}

std::string format_table(std::span<const kv::LayerFormat> formats) {
  const auto plain = std::span(kNamedFormats).subspan(kFirstPlain);
  std::string table;
  for (size_t begin = 0, end = 0; begin < formats.size(); begin = end) {
    while (end < formats.size() && formats[end] == formats[begin]) ++end;
    const std::string name = kv::to_string(formats[begin]);
    const auto known = std::ranges::find(plain, name, &NamedFormat::name);
    if (end - begin == formats.size() && known != plain.end() && known->biased_k == BiasedK::kAsNamed) return name;
    table += fmt::format("{}{}", begin == 0 ? "" : ",", name);
    if (end - begin > 1) table += fmt::format("*{}", end - begin);
  }
  return table;
}

std::string format_table(std::span<const AttentionGroup> groups) {
  std::vector<kv::LayerFormat> formats;
  for (const AttentionGroup& group : groups) {
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const auto layer = static_cast<size_t>(group.layers[i]);
      if (layer >= formats.size()) formats.resize(layer + 1);
      formats[layer] = group.layout.layers[i].format;
    }
  }
  return format_table(formats);
}

std::vector<std::string> fitting_formats(std::string_view format) {
  if (format == "auto") return {std::begin(kBestFirst), std::end(kBestFirst)};
  return {std::string(format)};
}

std::vector<uint8_t> k_bias_layers(const weights::Gguf& gguf, const weights::ModelConfig& config) {
  std::vector<uint8_t> k_bias;
  for (int layer = 0; layer < config.n_layers; ++layer)
    k_bias.push_back(gguf.find(layer_tensor(layer, "attn_k.bias")) != nullptr ? 1 : 0);
  return k_bias;
}

std::vector<AttentionGroup> group_layers(const weights::ModelConfig& config, std::span<const kv::LayerFormat> formats) {
  AttentionGroup global{.window = 0, .layers = {}, .layout = {}};
  AttentionGroup local{.window = config.sliding_window, .layers = {}, .layout = {}};
  for (int layer = 0; layer < config.n_layers; ++layer)
    (config.is_local(layer) ? local : global).layers.push_back(layer);

  std::vector<AttentionGroup> groups;
  for (AttentionGroup* group : {&global, &local}) {
    if (group->layers.empty()) continue;
    std::vector<kv::LayerFormat> own;
    for (const int layer : group->layers) own.push_back(formats[static_cast<size_t>(layer)]);
    group->layout = kv::GroupLayout::make(config.n_kv_heads, config.head_dim, own);
    groups.push_back(std::move(*group));
  }
  return groups;
}

KvFootprint footprint(std::string_view format, std::span<const AttentionGroup> groups) {
  KvFootprint out{.format = std::string(format), .note = note_of(format, groups)};
  for (const AttentionGroup& group : groups)
    (group.window == 0 ? out.bytes_per_token : out.window_bytes_per_token) += group.layout.bytes_per_token();
  return out;
}

Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format) {
  TRY_ASSIGN(const std::vector<kv::LayerFormat> formats, layer_formats(format, k_bias_layers(gguf, config)));
  return group_layers(config, formats);
}

}  // namespace pagoda::models
