#include "tools/model_costs.h"

#include <algorithm>

#include "models/kv_plan.h"
#include "weights/model_config.h"
#include "weights/repack.h"

namespace pagoda::tools {
namespace {

using kernels::Arithmetic;
using kernels::DotKind;

// Of a product with cached K or V: in int8 arithmetic integers where the cache has them, else f32.
DotKind product_kind(kv::KvType type, Arithmetic arithmetic, DotKind integers) {
  switch (arithmetic) {
    case Arithmetic::kInt8:
      return kv::is_scaled(type) ? integers : DotKind::kF32;
    case Arithmetic::kF32:
      return DotKind::kF32;
    case Arithmetic::kBf16:
      return DotKind::kBf16;
  }
  return DotKind::kF32;
}

// The queries of q.K have 8 bits, the weights of P.V 15.
DotKind qk_kind(kv::KvType k, Arithmetic arithmetic) { return product_kind(k, arithmetic, DotKind::kInt8); }
DotKind pv_kind(kv::KvType v, Arithmetic arithmetic) { return product_kind(v, arithmetic, DotKind::kInt15); }

void add_layer(std::vector<ModelCosts::KvLayers>& kv, const ModelCosts::KvLayers& layer) {
  const auto same = std::ranges::find_if(kv, [&](const ModelCosts::KvLayers& other) {
    return other.window == layer.window && other.qk == layer.qk && other.pv == layer.pv;
  });
  if (same == kv.end()) {
    kv.push_back(layer);
    return;
  }
  same->n_layers += layer.n_layers;
  same->bytes_per_token += layer.bytes_per_token;
}

std::vector<ModelCosts::KvLayers> kv_layers(std::span<const models::AttentionGroup> groups, Arithmetic arithmetic) {
  std::vector<ModelCosts::KvLayers> kv;
  for (const models::AttentionGroup& group : groups) {
    const kv::GroupLayout& layout = group.layout;
    for (const kv::LayerLayout& layer : layout.layers) {
      const size_t token_bytes =
          static_cast<size_t>(layout.n_kv_heads) * kv::token_head_bytes(layer.format, layout.head_dim);
      add_layer(kv, {.n_layers = 1,
                     .window = group.window,
                     .bytes_per_token = static_cast<double>(token_bytes),
                     .qk = qk_kind(layer.format.k, arithmetic),
                     .pv = pv_kind(layer.format.v, arithmetic)});
    }
  }
  return kv;
}

bool is_output(const weights::Gguf& gguf, const weights::TensorInfo& tensor) {
  return tensor.name == "output.weight" ||
         (tensor.name == "token_embd.weight" && gguf.find("output.weight") == nullptr);
}

void add_tensor(const WeightTensor& tensor, Arithmetic arithmetic, ModelCosts& costs) {
  if (tensor.part == WeightTensor::Part::kOther) return;
  const bool output = tensor.part == WeightTensor::Part::kHead;
  (output ? costs.head_bytes : costs.body_bytes) += static_cast<double>(tensor.held_bytes());
  if (tensor.n_dims < 2) return;
  const auto kind = static_cast<size_t>(dot_kind(tensor.dtype, arithmetic));
  (output ? costs.head : costs.body)[kind] += static_cast<double>(tensor.n_elements());
}

}  // namespace

uint64_t WeightTensor::held_bytes() const { return weights::held_bytes(dtype, n_dims, rows, cols); }

Result<std::vector<WeightTensor>> weight_tensors(const weights::Gguf& gguf) {
  using Part = WeightTensor::Part;
  std::vector<WeightTensor> tensors;
  for (const weights::TensorInfo& tensor : gguf.tensors()) {
    if (tensor.name == "rope_freqs.weight") continue;  // becomes a part of the configuration
    if (!tensor.dtype) {
      return fail(
          gguf.error_at(ErrorCode::kUnsupported, tensor,
                        fmt::format("tensor type {} is not supported", tensor::gguf_type_name(tensor.gguf_type))));
    }
    const Part part = is_output(gguf, tensor)           ? Part::kHead
                      : tensor.name.starts_with("blk.") ? Part::kBody
                                                        : Part::kOther;
    tensors.push_back({part, *tensor.dtype, tensor.n_dims, tensor.rows(), tensor.cols()});
  }
  return tensors;
}

ModelCosts model_costs(const weights::ModelConfig& config, std::span<const models::AttentionGroup> groups,
                       std::span<const WeightTensor> tensors, Arithmetic arithmetic) {
  ModelCosts costs;
  costs.n_heads = config.n_heads;
  costs.head_dim = config.head_dim;
  costs.kv = kv_layers(groups, arithmetic);
  for (const WeightTensor& tensor : tensors) add_tensor(tensor, arithmetic, costs);
  return costs;
}

DotKind dot_kind(tensor::DType dtype, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kBf16) return DotKind::kBf16;
  if (arithmetic == Arithmetic::kF32 || tensor::is_float(dtype)) return DotKind::kF32;
  const tensor::PanelFormat format = tensor::panel_format(dtype);
  const int bits = format.table ? 8 : format.bits();  // a table's values are whole bytes
  return bits <= 4 ? DotKind::kInt4 : bits == 5 ? DotKind::kInt5 : bits == 6 ? DotKind::kInt6 : DotKind::kInt8;
}

Result<ModelCosts> model_costs(const weights::Gguf& gguf, Arithmetic arithmetic, std::string_view kv_format) {
  TRY_ASSIGN(const weights::ModelConfig config, weights::read_model_config(gguf));
  TRY_ASSIGN(const std::vector<models::AttentionGroup> groups, models::plan_groups(gguf, config, kv_format));
  TRY_ASSIGN(const std::vector<WeightTensor> tensors, weight_tensors(gguf));
  return model_costs(config, groups, tensors, arithmetic);
}

}  // namespace pagoda::tools
