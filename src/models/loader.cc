#include "models/loader.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "tensor/dequant.h"
#include "weights/repack.h"

namespace pagoda::models {
namespace {

constexpr size_t kRunBytes = size_t{8} << 20;  // of a matrix in the file, between two releases of its pages

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

std::string layer_tensor(int layer, std::string_view name) { return fmt::format("blk.{}.{}", layer, name); }

Loader::Loader(const weights::Gguf& gguf, weights::ModelConfig config, std::vector<AttentionGroup> groups,
               ThreadPool& pool)
    : gguf_(gguf), pool_(pool), weights_{std::move(config), std::move(groups), {}} {}

Result<const weights::TensorInfo*> Loader::tensor(const std::string& name, std::span<const int64_t> shape) {
  const weights::TensorInfo* info = gguf_.find(name);
  if (info == nullptr) return fail(ErrorCode::kBadFile, "tensor {} is missing from {}", name, gguf_.name());
  if (!std::ranges::equal(info->shape(), shape)) {
    return fail(gguf_.error_at(
        ErrorCode::kBadFile, *info,
        fmt::format("tensor {} has shape {}, expected {}", name, weights::shape_string(*info), shape_text(shape))));
  }
  if (!info->dtype) {
    return fail(gguf_.error_at(
        ErrorCode::kUnsupported, *info,
        fmt::format("tensor {} has type {}, which is not supported", name, tensor::gguf_type_name(info->gguf_type))));
  }
  used_.insert(name);
  return info;
}

Result<Linear> Loader::linear(const std::string& name, int n_outputs, int n_inputs, Part bias) {
  const std::array<int64_t, 2> shape{n_outputs, n_inputs};
  TRY_ASSIGN(const weights::TensorInfo* info, tensor(name + ".weight", shape));
  const weights::FileMatrix source{*info->dtype, n_outputs, n_inputs, info->bytes};
  TRY_ASSIGN(weights::RepackedMatrix matrix, weights::allocate_panels(source, weights_.arena));
  repack(source, *info, matrix);
  Linear linear{.weight = matrix.view, .bias = nullptr};
  TRY_ASSIGN(linear.bias, vector(name + ".bias", n_outputs, bias));
  return linear;
}

// In runs of panels, so that of the file only a run is resident: an embedding may be the larger part of a model.
void Loader::repack(const weights::FileMatrix& source, const weights::TensorInfo& info,
                    const weights::RepackedMatrix& matrix) {
  const ThreadPool::Step step(pool_);
  const int n_panels = matrix.view.n_panels();
  const size_t panel_source_bytes = info.bytes.size() / static_cast<size_t>(n_panels) + 1;
  const int n_workers = pool_.n_workers();
  const int run = std::max(n_workers, static_cast<int>(kRunBytes / panel_source_bytes));
  for (int begin = 0; begin < n_panels; begin += run) {
    const int n = std::min(run, n_panels - begin);
    pool_.run([&](int worker) {
      const Slice panels = slice_of(n, 1, worker, n_workers);
      weights::repack_panels(source, begin + panels.begin, begin + panels.end, matrix);
    });
    gguf_.drop(info, std::min(info.bytes.size(), static_cast<size_t>(begin + n) * panel_source_bytes));
  }
}

Result<const float*> Loader::vector(const std::string& name, int n, Part part) {
  if (part == Part::kAbsent || (part == Part::kOptional && gguf_.find(name) == nullptr)) return nullptr;
  const std::array<int64_t, 1> shape{n};
  TRY_ASSIGN(const weights::TensorInfo* info, tensor(name, shape));
  TRY_ASSIGN(const std::span<std::byte> bytes, weights_.arena.take(static_cast<size_t>(n) * sizeof(float)));
  auto* values = reinterpret_cast<float*>(bytes.data());
  tensor::dequantize_row(*info->dtype, info->bytes.data(), n, values);
  return values;
}

Result<Norm> Loader::norm(const std::string& name) {
  TRY_ASSIGN(const float* weight, vector(name, config().embed_dim, Part::kRequired));
  return Norm{weight, config().rms_eps};
}

Result<Norm> Loader::head_norm(const std::string& name, Part part) {
  TRY_ASSIGN(const float* weight, vector(name, config().head_dim, part));
  return Norm{weight, config().rms_eps};
}

Result<Linear> Loader::embedding() {
  return linear("token_embd", config().vocab_size, config().embed_dim, Part::kAbsent);
}

Result<Linear> Loader::output(const Linear& embedding) {
  if (gguf_.find("output.weight") == nullptr) return embedding;
  return linear("output", config().vocab_size, config().embed_dim, Part::kAbsent);
}

Result<Attention> Loader::attention(int layer, AttentionParts parts) {
  const int q_dim = config().n_heads * config().head_dim;
  const int kv_dim = config().n_kv_heads * config().head_dim;
  const int embed = config().embed_dim;
  Attention a;
  a.layer = layer;
  TRY_ASSIGN(a.q, linear(layer_tensor(layer, "attn_q"), q_dim, embed, parts.qkv_bias));
  TRY_ASSIGN(a.k, linear(layer_tensor(layer, "attn_k"), kv_dim, embed, parts.qkv_bias));
  TRY_ASSIGN(a.v, linear(layer_tensor(layer, "attn_v"), kv_dim, embed, parts.qkv_bias));
  TRY_ASSIGN(a.o, linear(layer_tensor(layer, "attn_output"), embed, q_dim, Part::kAbsent));
  TRY_ASSIGN(a.q_norm, head_norm(layer_tensor(layer, "attn_q_norm.weight"), parts.qk_norm));
  TRY_ASSIGN(a.k_norm, head_norm(layer_tensor(layer, "attn_k_norm.weight"), parts.qk_norm));
  a.rope = config().is_local(layer) ? RopeTable::Layers::kLocal : RopeTable::Layers::kGlobal;
  for (size_t g = 0; g < weights_.groups.size(); ++g) {
    const auto& layers = weights_.groups[g].layers;
    const auto at = std::ranges::find(layers, layer);
    if (at == layers.end()) continue;
    a.group = static_cast<int>(g);
    a.layer_in_group = static_cast<int>(at - layers.begin());
  }
  return a;
}

Result<GatedMlp> Loader::gated_mlp(int layer, kernels::Activation activation) {
  const int embed = config().embed_dim;
  const int ffn = config().ffn_dim;
  GatedMlp mlp{.gate = {}, .up = {}, .down = {}, .activation = activation};
  TRY_ASSIGN(mlp.gate, linear(layer_tensor(layer, "ffn_gate"), ffn, embed, Part::kAbsent));
  TRY_ASSIGN(mlp.up, linear(layer_tensor(layer, "ffn_up"), ffn, embed, Part::kAbsent));
  TRY_ASSIGN(mlp.down, linear(layer_tensor(layer, "ffn_down"), embed, ffn, Part::kAbsent));
  return mlp;
}

Result<LoadedWeights> Loader::finish() {
  for (const weights::TensorInfo& info : gguf_.tensors()) {
    // Read as rope factors by read_model_config.
    if (info.name == "rope_freqs.weight" || used_.contains(info.name)) continue;
    return fail(gguf_.error_at(
        ErrorCode::kUnsupported, info,
        fmt::format("tensor {} is not part of architecture {} as Pagoda knows it: the model would answer wrongly",
                    info.name, to_string(config().architecture))));
  }
  return std::move(weights_);
}

}  // namespace pagoda::models
