#include "models/kv_plan.h"

#include <algorithm>
#include <iterator>
#include <map>

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
    {"q8", {KvType::kInt8, KvType::kInt8}, BiasedK::kAsNamed},
    {"k16v4", {KvType::kBf16, KvType::kInt4}, BiasedK::kAsNamed},
    {"k8v4", {KvType::kInt8, KvType::kInt4}, BiasedK::kBf16},
    {"q4", {KvType::kInt4, KvType::kInt4}, BiasedK::kBf16},
};

std::string format_names() {
  std::string names;
  for (const NamedFormat& known : kNamedFormats) names.append(names.empty() ? "" : ", ").append(known.name);
  return names;
}

// Of those that a quality gate lets through without a probe.
constexpr std::string_view kBestFirst[] = {"auto"};

}  // namespace

Result<std::vector<kv::LayerFormat>> layer_formats(std::string_view format, std::span<const uint8_t> k_bias) {
  const auto* known = std::ranges::find(kNamedFormats, format, &NamedFormat::name);
  if (known == std::end(kNamedFormats)) {
    return fail(ErrorCode::kInvalidArgument, "unknown KV format \"{}\"; there are {}", format, format_names());
  }
  std::vector<kv::LayerFormat> formats(k_bias.size(), known->format);
  for (size_t layer = 0; layer < formats.size(); ++layer) {
    if (known->biased_k == BiasedK::kBf16 && k_bias[layer] != 0) formats[layer].k = KvType::kBf16;
  }
  return formats;
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

std::string describe_formats(std::span<const AttentionGroup> groups) {
  std::map<int, std::string> names;  // by layer
  for (const AttentionGroup& group : groups) {
    for (size_t i = 0; i < group.layers.size(); ++i) names[group.layers[i]] = to_string(group.layout.layers[i].format);
  }
  std::string text;
  for (auto run = names.begin(); run != names.end();) {
    const auto end = std::find_if(run, names.end(), [&](const auto& layer) { return layer.second != run->second; });
    if (run == names.begin() && end == names.end()) return run->second;
    text +=
        fmt::format("{}{} in layers {}-{}", text.empty() ? "" : ", ", run->second, run->first, std::prev(end)->first);
    run = end;
  }
  return text;
}

Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format) {
  TRY_ASSIGN(const std::vector<kv::LayerFormat> formats, layer_formats(format, k_bias_layers(gguf, config)));
  return group_layers(config, formats);
}

}  // namespace pagoda::models
