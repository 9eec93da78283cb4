// A cache of random tokens, and rows of queries against it, for the attention tests.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/test_util.h"
#include "tensor/float16.h"

namespace pagoda::kernels {

inline constexpr kv::LayerFormat kBf16{kv::KvType::kBf16, kv::KvType::kBf16};
inline constexpr kv::LayerFormat kQ8{kv::KvType::kInt8, kv::KvType::kInt8};
inline constexpr kv::LayerFormat kK16V8{kv::KvType::kBf16, kv::KvType::kInt8};
inline constexpr kv::LayerFormat kK8V16{kv::KvType::kInt8, kv::KvType::kBf16};
inline constexpr kv::LayerFormat kK8V4{kv::KvType::kInt8, kv::KvType::kInt4};
inline constexpr kv::LayerFormat kQ4{kv::KvType::kInt4, kv::KvType::kInt4};
inline constexpr Arithmetic kAllArithmetics[] = {Arithmetic::kInt8, Arithmetic::kF32, Arithmetic::kBf16};
inline constexpr kv::LayerFormat kFormats[] = {kBf16, kQ8, kK16V8, kK8V16, kK8V4, kQ4};

// The second KV head of the second layer of a sequence of n_tokens random tokens.
class Cache {
 public:
  Cache(kv::LayerFormat format, int head_dim, int n_tokens, Isa writer = Isa::kRef) {
    const kv::LayerFormat layers[] = {kBf16, format};
    layout_ = kv::GroupLayout::make(2, head_dim, layers);
    k_ = random_floats(21, static_cast<size_t>(n_tokens * head_dim));
    v_ = random_floats(22, static_cast<size_t>(n_tokens * head_dim), 0.5f);
    for (int t = 0; t < n_tokens; t += kv::kBlockTokens) {
      owned_.push_back(std::make_unique<AlignedBytes>(layout_.block_bytes));
      blocks_.push_back(owned_.back()->data);
    }
    const kv::KvView view = this->view();
    for (int t = 0; t < n_tokens; ++t) {
      std::byte* head = owned_[static_cast<size_t>(t / kv::kBlockTokens)]->data + view.head_offset;
      kernel_table(writer).kv_write(&k_[static_cast<size_t>(t * head_dim)], &v_[static_cast<size_t>(t * head_dim)],
                                    head_dim, view.layer, head, t % kv::kBlockTokens);
    }
  }

  kv::KvView view() const { return kv::KvView::make(blocks_.data(), layout_, 1, 1); }
  void drop(int block) { blocks_[static_cast<size_t>(block)] = nullptr; }
  const AlignedBytes& bytes(int block) const { return *owned_[static_cast<size_t>(block)]; }
  int n_blocks() const { return static_cast<int>(blocks_.size()); }
  const std::vector<float>& keys() const { return k_; }
  const std::vector<float>& values() const { return v_; }

  // Of integers, the rotated row's.
  double k(int token, int dim) const { return element(layout_.layers[1].format.k, false, token, dim); }
  double v(int token, int dim) const { return element(layout_.layers[1].format.v, true, token, dim); }

 private:
  double element(kv::KvType type, bool is_value, int token, int dim) const {
    const kv::KvView view = this->view();
    const int block = token / kv::kBlockTokens;
    const int slot = token % kv::kBlockTokens;
    const size_t at = is_value ? kv::v_index(type, view.head_dim, slot, dim) : kv::k_index(type, slot, dim);
    const std::byte* part = is_value ? view.v(block) : view.k(block);
    if (type == kv::KvType::kBf16) return tensor::bf16_to_f32(reinterpret_cast<const uint16_t*>(part)[at]);
    const double scale = tensor::f16_to_f32((is_value ? view.v_scales(block) : view.k_scales(block))[slot]);
    if (type == kv::KvType::kInt8) return scale * reinterpret_cast<const int8_t*>(part)[at];
    const int both = std::to_integer<int>(part[at / 2]);
    return scale * (2 * (at % 2 == 0 ? both % 16 : both / 16) - 15);
  }

  kv::GroupLayout layout_;
  std::vector<float> k_, v_;
  std::vector<std::unique_ptr<AlignedBytes>> owned_;
  std::vector<const std::byte*> blocks_;
};

// Rows of queries at given positions.
struct Rows {
  Rows(const Cache& cache, std::vector<int32_t> positions) : position(std::move(positions)) {
    const auto n = static_cast<uint32_t>(position.size());
    const auto stride = static_cast<uint32_t>(cache.view().head_dim + 16);
    q = random_floats(23, n * stride, 2.0f);
    for (uint32_t r = 0; r < n; ++r) offset.push_back((n - 1 - r) * stride);  // not in order
    args.kv = cache.view();
    args.scale = 1.0f / std::sqrt(static_cast<float>(args.kv.head_dim));
    point();
  }
  void point() {
    args.q = q.data();
    args.row_offset = offset.data();
    args.position = position.data();
    args.n_rows = static_cast<int>(position.size());
  }
  // Results of all rows, as one thread computes them.
  std::vector<float> run(Isa isa, Arithmetic arithmetic) { return run(kernel_table(isa), arithmetic); }
  std::vector<float> run(const KernelTable& table, Arithmetic arithmetic) {
    std::vector<float> out(q.size(), -7.0f);
    AlignedBytes scratch(attention_scratch_bytes(args.kv.head_dim));
    std::memset(scratch.data, 0xFF, scratch.size);  // NaN
    args.out = out.data();
    attention(table, arithmetic, args, scratch.data);
    return out;
  }

  std::vector<int32_t> position;
  std::vector<float> q;
  std::vector<uint32_t> offset;
  AttentionArgs args;
};

inline std::vector<int32_t> run_of_positions(int first, int n_rows, int rows_per_token) {
  std::vector<int32_t> positions;
  for (int r = 0; r < n_rows; ++r) positions.push_back(first + r / rows_per_token);
  return positions;
}

}  // namespace pagoda::kernels
