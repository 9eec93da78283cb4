#include "models/exec_context.h"

#include <algorithm>

#include "base/check.h"

namespace pagoda::models {
namespace {

constexpr size_t kSlotRows = 8;  // tokens whose spans may all lie unmerged

// Lays parts one after another on 64 bytes: a first pass counts, a second hands out addresses.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  void take(T*& pointer, size_t count) {
    if (base_ != nullptr) pointer = reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
  }
  void take(InputForms& forms, size_t rows, size_t columns) {
    take(forms.q, rows * columns);
    take(forms.d, rows * columns / 32);
    take(forms.sums16, rows * columns / 16);
    take(forms.bf16, rows * columns);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace

size_t Workspace::carve(std::byte* base, const weights::ModelConfig& c) {
  const size_t rows = static_cast<size_t>(limits.max_rows);
  const size_t samples = static_cast<size_t>(limits.max_samples);
  const size_t embed = static_cast<size_t>(c.embed_dim);
  const size_t q_dim = static_cast<size_t>(c.n_heads) * static_cast<size_t>(c.head_dim);
  const size_t kv_dim = static_cast<size_t>(c.n_kv_heads) * static_cast<size_t>(c.head_dim);
  const size_t ffn = static_cast<size_t>(c.ffn_dim);
  const size_t partial = static_cast<size_t>(kernels::partial_floats(c.head_dim));
  Carver carver(base);
  carver.take(x, rows * embed);
  carver.take(x_next, rows * embed);
  carver.take(h, rows * embed);
  carver.take(qkv, rows * (q_dim + 2 * kv_dim));
  carver.take(gate, rows * ffn);
  carver.take(up, rows * ffn);
  carver.take(logits, samples * static_cast<size_t>(c.vocab_size));
  carver.take(tiles, samples * static_cast<size_t>(n_logit_tiles_));
  for (float*& table : rope) carver.take(table, rows * static_cast<size_t>(c.rope.dim));
  carver.take(outer, rows, embed);
  carver.take(heads, rows, q_dim);
  carver.take(inner, rows, ffn);
  carver.take(folds, rows * static_cast<size_t>(c.n_heads) * partial);
  carver.take(slots, max_slots(c, limits) * partial);
  carver.take(packed, kernels::packed_bytes(widest_, limits.max_rows));
  const size_t scratch = std::max(kernels::matmul_scratch_bytes(widest_), kernels::attention_scratch_bytes(c.head_dim));
  for (PartScratch& part : parts) {
    carver.take(part.kernel, scratch);
    carver.take(part.partials, static_cast<size_t>(kernels::kAttentionMaxRows) * partial);
    carver.take(part.h, kShortRows * embed);
    carver.take(part.forms, kShortRows, embed);
  }
  return carver.used();
}

size_t Workspace::max_slots(const weights::ModelConfig& config, const StepLimits& limits) {
  return kSlotRows * static_cast<size_t>(config.n_heads) *
         static_cast<size_t>(limits.max_context / kernels::kSpanTokens);
}

Workspace::Workspace(const weights::ModelConfig& config, const StepLimits& step_limits)
    : limits(step_limits),
      parts(static_cast<size_t>(step_limits.n_parts)),
      n_logit_tiles_((config.vocab_size + kernels::kLogitsTile - 1) / kernels::kLogitsTile),
      widest_(std::max({config.embed_dim, config.n_heads * config.head_dim, config.ffn_dim})) {}

size_t Workspace::bytes_for(const weights::ModelConfig& config, const StepLimits& limits) {
  return Workspace(config, limits).carve(nullptr, config);
}

Result<Workspace> Workspace::make(const weights::ModelConfig& config, const StepLimits& limits) {
  CHECK(limits.max_rows > 0 && limits.max_samples > 0 && limits.n_parts > 0);
  Workspace w(config, limits);
  TRY_ASSIGN(w.memory_, tensor::AlignedBuffer::allocate(w.carve(nullptr, config)));
  w.carve(w.memory_.data(), config);
  return w;
}

}  // namespace pagoda::models
