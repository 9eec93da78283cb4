#include "models/kv_plan.h"

#include <charconv>
#include <optional>

#include "models/loader.h"

namespace pagoda::models {

namespace {

constexpr kv::KvType kTypes[] = {kv::KvType::kBf16, kv::KvType::kInt8};

std::optional<kv::LayerFormat> named_format(std::string_view name) {
  for (const kv::KvType k : kTypes) {
    for (const kv::KvType v : kTypes) {
      if (kv::to_string({k, v}) == name) return kv::LayerFormat{k, v};
    }
  }
  return std::nullopt;
}

// "k16v8*2,q8" -> three layers.
Result<std::vector<kv::LayerFormat>> parse_table(std::string_view table, size_t n_layers) {
  std::vector<kv::LayerFormat> formats;
  for (size_t begin = 0; begin <= table.size();) {
    const std::string_view run = table.substr(begin, table.find(',', begin) - begin);
    const std::string_view name = run.substr(0, run.find('*'));
    const std::string_view count = name.size() < run.size() ? run.substr(name.size() + 1) : "1";
    size_t n = 0;
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), n);
    const std::optional<kv::LayerFormat> format = named_format(name);
    if (!format || error != std::errc() || end != count.data() + count.size() || n == 0 || n > n_layers)
      return fail(ErrorCode::kInvalidArgument, "KV formats \"{}\": \"{}\" is no format of some layers", table, run);
    formats.insert(formats.end(), n, *format);
    begin += run.size() + 1;
  }
  if (formats.size() != n_layers)
    return fail(ErrorCode::kInvalidArgument, "KV formats \"{}\" are of {} layers; the model has {}", table,
                formats.size(), n_layers);
  return formats;
}

}  // namespace

Result<std::vector<kv::LayerFormat>> layer_formats(std::string_view format, std::span<const uint8_t> k_bias) {
  if (format.find_first_of("*,") != std::string_view::npos) return parse_table(format, k_bias.size());
  if (format == "auto") {
    std::vector<kv::LayerFormat> formats;
    for (const uint8_t has_k_bias : k_bias)
      formats.push_back({has_k_bias != 0 ? kv::KvType::kBf16 : kv::KvType::kInt8, kv::KvType::kInt8});
    return formats;
  }
  const std::optional<kv::LayerFormat> every = named_format(format);
  if (!every) {
    return fail(ErrorCode::kInvalidArgument, "unknown KV format \"{}\"; there are auto, q8, bf16, k16v8, k8v16",
                format);
  }
  return std::vector(k_bias.size(), *every);
}

std::string format_table(std::span<const kv::LayerFormat> formats) {
  std::string table;
  for (size_t begin = 0, end = 0; begin < formats.size(); begin = end) {
    while (end < formats.size() && formats[end] == formats[begin]) ++end;
    if (begin == 0 && end == formats.size()) return kv::to_string(formats[begin]);
    table += fmt::format("{}{}", begin == 0 ? "" : ",", kv::to_string(formats[begin]));
    if (end - begin > 1) table += fmt::format("*{}", end - begin);
  }
  return table;
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

Result<std::vector<AttentionGroup>> plan_groups(const weights::Gguf& gguf, const weights::ModelConfig& config,
                                                std::string_view format) {
  TRY_ASSIGN(const std::vector<kv::LayerFormat> formats, layer_formats(format, k_bias_layers(gguf, config)));
  return group_layers(config, formats);
}

}  // namespace pagoda::models
