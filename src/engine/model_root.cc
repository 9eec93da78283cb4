#include "engine/model_root.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "kv/layout.h"

namespace pagoda::engine {
namespace {

constexpr size_t kSampleBytes = 1024;

// Collects what is hashed; every variable part comes with its length.
class Message {
 public:
  void add(uint64_t value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void add(std::string_view text) {
    add(text.size());
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void add_digest(std::span<const std::byte> bytes) {
    const Sha256 digest = sha256(bytes);
    bytes_.insert(bytes_.end(), digest.begin(), digest.end());
  }
  Sha256 digest() const { return sha256(bytes_); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

void add_tensor(const weights::TensorInfo& tensor, Message& message) {
  message.add(tensor.name);
  message.add(tensor.gguf_type);
  for (const int64_t dim : tensor.dims) message.add(static_cast<uint64_t>(dim));
  message.add(tensor.bytes.size());
  const size_t n = std::min(tensor.bytes.size(), kSampleBytes);
  for (const size_t at : {size_t{0}, (tensor.bytes.size() - n) / 2, tensor.bytes.size() - n}) {
    message.add_digest(tensor.bytes.subspan(at, n));
  }
}

Message computation(std::span<const models::AttentionGroup> groups, kernels::Arithmetic arithmetic) {
  Message message;
  message.add(kernels::kNumericsRevision);
  message.add(static_cast<uint64_t>(arithmetic));
  message.add(kv::kLayoutId);
  message.add(groups.size());
  for (const models::AttentionGroup& group : groups) {
    message.add(static_cast<uint64_t>(group.window));
    message.add(static_cast<uint64_t>(group.layout.n_kv_heads));
    message.add(static_cast<uint64_t>(group.layout.head_dim));
    message.add(group.layout.layers.size());
    for (const kv::LayerLayout& layer : group.layout.layers) message.add(kv::to_string(layer.format));
  }
  return message;
}

}  // namespace

std::vector<std::byte> describe_computation(std::span<const models::AttentionGroup> groups,
                                            kernels::Arithmetic arithmetic) {
  return computation(groups, arithmetic).bytes();
}

Hash128 model_root(const weights::Gguf& gguf, std::span<const models::AttentionGroup> groups,
                   kernels::Arithmetic arithmetic) {
  Message message = computation(groups, arithmetic);
  message.add(gguf.file_bytes());
  for (const weights::GgufEntry& entry : gguf.metadata()) {
    message.add(entry.key);
    message.add(static_cast<uint64_t>(entry.value.type));
    message.add_digest(entry.value.bytes);
  }
  for (const weights::TensorInfo& tensor : gguf.tensors()) add_tensor(tensor, message);
  const Sha256 digest = message.digest();
  Hash128 root;
  std::memcpy(&root, digest.data(), sizeof(root));
  return root;
}

Sha256 model_identity(std::vector<std::byte> computation, const Sha256& files) {
  computation.insert(computation.end(), files.begin(), files.end());
  return sha256(computation);
}

}  // namespace pagoda::engine
