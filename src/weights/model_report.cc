#include "weights/model_report.h"

#include <algorithm>

#include "weights/gguf_parse.h"
#include "weights/tokenizer_metadata.h"

namespace pagoda::weights {
namespace {

std::string text_or_empty(const Gguf& gguf, std::string_view key) {
  const auto text = gguf.get_string(key);
  return text && *text ? printable(**text) : std::string();
}

void count_tensor(const TensorInfo& tensor, ModelReport* report) {
  const std::string type = tensor::gguf_type_name(tensor.gguf_type);
  auto entry = std::ranges::find(report->types, type, &TensorTypeBytes::type);
  if (entry == report->types.end()) entry = report->types.insert(entry, {type, 0, 0});
  ++entry->n_tensors;
  entry->bytes += static_cast<int64_t>(tensor.bytes.size());
  if (tensor.name != "rope_freqs.weight") report->parameters += tensor.n_elements();
  if (!tensor.dtype) {
    report->unsupported.push_back({printable(tensor.name), fmt::format("tensor type {} is not supported", type)});
  }
}

void describe_tokenizer(const Gguf& gguf, ModelReport* report) {
  const auto metadata = read_tokenizer_metadata(gguf);
  if (!metadata) {
    report->unsupported.push_back({"tokenizer", metadata.error().to_string()});
    return;
  }
  report->tokenizer = TokenizerSummary{printable(metadata->model), printable(metadata->pre),
                                       static_cast<int64_t>(metadata->tokens.size()),
                                       static_cast<int64_t>(metadata->chat_template.size())};
}

void describe_config(const Gguf& gguf, ModelReport* report) {
  if (gguf.tensors().empty()) {
    report->unsupported.push_back({"weights", "the file holds a vocabulary only"});
    return;
  }
  auto config = read_model_config(gguf);
  if (!config) {
    report->unsupported.push_back({"model", config.error().to_string()});
    return;
  }
  report->config = std::move(*config);
}

}  // namespace

ModelReport describe(const Gguf& gguf) {
  ModelReport report;
  report.architecture = text_or_empty(gguf, "general.architecture");
  report.name = text_or_empty(gguf, "general.name");
  report.gguf_version = gguf.version();
  report.n_parts = static_cast<int64_t>(gguf.n_parts());
  report.file_bytes = static_cast<int64_t>(gguf.file_bytes());
  report.n_tensors = static_cast<int64_t>(gguf.tensors().size());
  describe_config(gguf, &report);
  describe_tokenizer(gguf, &report);
  for (const TensorInfo& tensor : gguf.tensors()) count_tensor(tensor, &report);
  std::ranges::sort(report.types, std::ranges::greater(), &TensorTypeBytes::bytes);
  return report;
}

}  // namespace pagoda::weights
