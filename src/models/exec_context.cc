#include "models/exec_context.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::models {
namespace {

// Lays parts one after another on 64 bytes: a first pass counts, a second hands out addresses.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  void take(T*& pointer, size_t count) {
    if (base_ != nullptr) pointer = reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

size_t carve(Workspace& w, std::byte* base, const weights::ModelConfig& c) {
  const size_t rows = static_cast<size_t>(w.max_rows);
  const size_t embed = static_cast<size_t>(c.embed_dim);
  const size_t q_dim = static_cast<size_t>(c.n_heads) * static_cast<size_t>(c.head_dim);
  const size_t kv_dim = static_cast<size_t>(c.n_kv_heads) * static_cast<size_t>(c.head_dim);
  const size_t ffn = static_cast<size_t>(c.ffn_dim);
  const size_t widest = std::max({embed, q_dim, ffn});
  Carver carver(base);
  carver.take(w.x, rows * embed);
  carver.take(w.h, rows * embed);
  carver.take(w.qkv, rows * (q_dim + 2 * kv_dim));
  carver.take(w.gate, rows * ffn);
  carver.take(w.up, rows * ffn);
  carver.take(w.logits, static_cast<size_t>(w.max_samples) * static_cast<size_t>(c.vocab_size));
  for (float*& table : w.rope) carver.take(table, rows * static_cast<size_t>(c.rope.dim));
  carver.take(w.quant_q, rows * widest);
  carver.take(w.quant_d, rows * widest / 32);
  carver.take(w.quant_sums, rows * widest / 16);
  const size_t scratch =
      std::max(kernels::matmul_scratch_bytes(static_cast<int>(widest)), kernels::attention_scratch_bytes(c.head_dim));
  for (std::byte*& worker : w.worker_scratch) carver.take(worker, scratch);
  return carver.used();
}

}  // namespace

Result<Workspace> Workspace::make(const weights::ModelConfig& config, int max_rows, int max_samples, int n_workers) {
  CHECK(max_rows > 0 && max_samples > 0 && n_workers > 0);
  Workspace w;
  w.max_rows = max_rows;
  w.max_samples = max_samples;
  w.worker_scratch.resize(static_cast<size_t>(n_workers));
  TRY_ASSIGN(w.memory_, tensor::AlignedBuffer::allocate(carve(w, nullptr, config)));
  carve(w, w.memory_.data(), config);
  return w;
}

}  // namespace pagoda::models
