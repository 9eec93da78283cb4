// What the cache holds at its edges, and what comes of it in P.V.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention_fixture.h"
#include "kernels/int8_rule.h"
#include "kernels/rotation.h"
#include "tensor/float16.h"

namespace pagoda::kernels {
namespace {

using kv::KvType;

TEST(KvWriteTest, EdgesOfTheScale) {
  set_float_mode();
  constexpr int kDim = 16;
  const kv::LayerFormat layers[] = {kQ8};
  const kv::GroupLayout layout = kv::GroupLayout::make(1, kDim, layers);
  const kv::LayerLayout& layer = layout.layers[0];
  const std::vector<float> zeros(kDim, 0.0f);
  const std::vector<float> tiny(kDim, 1e-9f);  // its scale rounds to 0
  const std::vector<float> huge(kDim, -1e9f);  // beyond f16: clamps, stays finite
  for (const Isa isa : supported_isas()) {
    AlignedBytes block(layout.block_bytes);
    std::memset(block.data, 0x55, block.size);
    kernel_table(isa).kv_write(zeros.data(), tiny.data(), kDim, layer, block.data, 3);
    kernel_table(isa).kv_write(huge.data(), huge.data(), kDim, layer, block.data, 5);
    const auto* k = reinterpret_cast<const int8_t*>(block.data);
    const auto* k_scales = reinterpret_cast<const uint16_t*>(block.data + layer.k_scales);
    const auto* v = reinterpret_cast<const int8_t*>(block.data + layer.v);
    const auto* v_scales = reinterpret_cast<const uint16_t*>(block.data + layer.v_scales);
    EXPECT_EQ(k_scales[3], 0);
    EXPECT_EQ(v_scales[3], 0);
    EXPECT_EQ(k_scales[5], 0x7BFF);
    for (int d = 0; d < kDim; ++d) {
      EXPECT_EQ(k[kv::k_index(KvType::kInt8, 3, d)], 0);
      EXPECT_EQ(v[kv::v_index(KvType::kInt8, kDim, 3, d)], 0);
      EXPECT_EQ(k[kv::k_index(KvType::kInt8, 5, d)], d == 0 ? -127 : 0) << "rotated, it is one large value";
      EXPECT_EQ(k[kv::k_index(KvType::kInt8, 4, d)], 0x55) << "another slot was touched";
      EXPECT_EQ(v[kv::v_index(KvType::kInt8, kDim, 4, d)], 0x55);
    }
    EXPECT_EQ(k_scales[4], 0x5555);
  }
}

TEST(KvWriteTest, EdgesOfTheScaleInFourBits) {
  set_float_mode();
  constexpr int kDim = 48;  // the last group of V has no high halves
  const kv::LayerFormat layers[] = {kQ4};
  const kv::GroupLayout layout = kv::GroupLayout::make(1, kDim, layers);
  const kv::LayerLayout& layer = layout.layers[0];
  const std::vector<float> tiny(kDim, 1e-9f), huge(kDim, -1e9f);
  const auto codes = [&](const std::byte* part, bool is_value, int slot, int d) {
    const size_t at = is_value ? kv::v_index(KvType::kInt4, kDim, slot, d) : kv::k_index(KvType::kInt4, slot, d);
    return std::to_integer<int>(at % 2 == 0 ? part[at / 2] & std::byte{15} : part[at / 2] >> 4);
  };
  for (const Isa isa : supported_isas()) {
    AlignedBytes block(layout.block_bytes);
    std::memset(block.data, 0x55, block.size);
    kernel_table(isa).kv_write(tiny.data(), tiny.data(), kDim, layer, block.data, 3);
    kernel_table(isa).kv_write(huge.data(), huge.data(), kDim, layer, block.data, 5);
    const std::byte* parts[] = {block.data, block.data + layer.v};
    for (const bool is_value : {false, true}) {
      const size_t at = is_value ? layer.v_scales : layer.k_scales;
      const auto* scales = reinterpret_cast<const uint16_t*>(block.data + at);
      EXPECT_EQ(scales[3], 0);
      EXPECT_EQ(scales[4], 0x5555);
      EXPECT_EQ(scales[5], 0x7BFF);
      for (int d = 0; d < kDim; ++d) {
        EXPECT_EQ(codes(parts[is_value], is_value, 3, d), 0);
        EXPECT_EQ(codes(parts[is_value], is_value, 4, d), 5) << "another slot was touched";
        EXPECT_EQ(codes(parts[is_value], is_value, 5, d), d % 16 == 0 ? 0 : 8)
            << "rotated, it is one large value a run";
      }
    }
  }
}

TEST(RotationTest, KeepsLengthsAndIsItsOwnInverse) {
  for (const int head_dim : {16, 48, 64, 80, 256, 512}) {
    const std::vector<float> x = random_floats(7, static_cast<size_t>(head_dim));
    std::vector<float> twice = x;
    rotate(twice.data(), head_dim);
    double energy = 0, rotated_energy = 0;
    for (int d = 0; d < head_dim; ++d) {
      energy += double{x[d]} * x[d];
      rotated_energy += double{twice[d]} * twice[d];
    }
    EXPECT_NEAR(rotated_energy, energy, 1e-5 * energy);
    rotate(twice.data(), head_dim);
    for (int d = 0; d < head_dim; ++d) EXPECT_NEAR(twice[d], x[d], 1e-5);
  }
}

// One large dim takes a whole row's scale, unless it is spread over all.
TEST(RotationTest, SparesTheOtherDimsAnOutlier) {
  constexpr int kDim = 64;
  std::vector<float> x = random_floats(8, kDim);
  x[17] = 20.0f;
  const auto error = [&](std::vector<float> row, bool is_rotated) {
    if (is_rotated) rotate(row.data(), kDim);
    float amax = 0.0f;
    for (const float value : row) amax = std::max(amax, std::fabs(value));
    const float scale = tensor::f16_to_f32(kv_scale(amax, kInt4Max));
    double sum = 0;
    for (const float value : row) sum += std::pow(value - scale * (2.0f * quantize_i4(value, scale) - kInt4Max), 2.0);
    return sum;
  };
  EXPECT_LT(error(x, true), 0.3 * error(x, false));
}

// A cache of q8 whose K and V have a dim far larger than the others, as trained models' do, attended as if it were exact.
TEST(AttentionValuesTest, AnOutlierDimSparesTheOthersInEightBits) {
  set_float_mode();
  constexpr int kDim = 256;
  constexpr int kTokens = 64;
  constexpr int kOutlier = 75;
  const kv::GroupLayout layout = kv::GroupLayout::make(1, kDim, std::vector<kv::LayerFormat>{kQ8});
  std::vector<float> k = random_floats(31, kTokens * kDim);
  std::vector<float> v = random_floats(32, kTokens * kDim);
  std::vector<float> q = random_floats(33, kDim);
  for (int t = 0; t < kTokens; ++t) k[t * kDim + kOutlier] = v[t * kDim + kOutlier] = 30.0f;
  std::vector<double> p(kTokens), want(kDim);
  double sum = 0;
  for (int t = 0; t < kTokens; ++t) {
    double dot = 0;
    for (int d = 0; d < kDim; ++d) dot += double{q[d]} * k[t * kDim + d];
    sum += p[t] = std::exp(dot / 16);
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int d = 0; d < kDim; ++d) want[d] += p[t] / sum * v[t * kDim + d];
  }
  for (const Isa isa : supported_isas()) {
    std::vector<std::unique_ptr<AlignedBytes>> owned;
    std::vector<const std::byte*> blocks;
    for (int t = 0; t < kTokens; ++t) {
      if (t % kv::kBlockTokens == 0) {
        owned.push_back(std::make_unique<AlignedBytes>(layout.block_bytes));
        blocks.push_back(owned.back()->data);
      }
      kernel_table(isa).kv_write(&k[t * kDim], &v[t * kDim], kDim, layout.layers[0], owned.back()->data,
                                 t % kv::kBlockTokens);
    }
    const uint32_t offset = 0;
    const int32_t position = kTokens - 1;
    std::vector<float> out(kDim);
    const AttentionArgs args{.q = q.data(),
                             .out = out.data(),
                             .row_offset = &offset,
                             .position = &position,
                             .n_rows = 1,
                             .kv = kv::KvView::make(blocks.data(), layout, 0, 0),
                             .scale = 1.0f / 16};
    AlignedBytes scratch(attention_scratch_bytes(kDim));
    attention(kernel_table(isa), Arithmetic::kF32, args, scratch.data);
    double error = 0;
    for (int d = 0; d < kDim; ++d) error += std::pow(out[d] - want[d], 2.0) / kDim;
    EXPECT_LT(std::sqrt(error), 0.004) << to_string(isa);
  }
}

// What lies in slots that nobody sees yet (an earlier sequence's bytes, any scale) contributes exactly nothing.
TEST(AttentionValuesTest, StaleSlotsContributeNothing) {
  set_float_mode();
  constexpr int kDim = 48;
  constexpr int kTokens = 300;  // the last block holds 12
  for (const kv::LayerFormat format : {kQ8, kK16V8, kQ4}) {
    const Cache clean(format, kDim, kTokens);
    const Cache stale(format, kDim, kTokens);
    const kv::KvView view = stale.view();
    std::byte* head = stale.bytes(kTokens / kv::kBlockTokens).data + view.head_offset;
    for (int slot = kTokens % kv::kBlockTokens; slot < kv::kBlockTokens; ++slot) {
      reinterpret_cast<uint16_t*>(head + view.layer.v_scales)[slot] = slot % 2 == 0 ? 0x7E00 : 0x7BFF;  // NaN, largest
      for (int d = 0; d < kDim; ++d) {
        const size_t at = kv::v_index(format.v, kDim, slot, d);
        head[view.layer.v + (format.v == KvType::kInt4 ? at / 2 : at)] = std::byte{0x80};
      }
    }
    Rows rows(clean, run_of_positions(kTokens - 5, 15, 3));
    Rows same(stale, run_of_positions(kTokens - 5, 15, 3));
    const std::vector<float> want = rows.run(Isa::kRef, Arithmetic::kInt8);
    for (const Isa isa : supported_isas()) {
      EXPECT_TRUE(same_bits(same.run(isa, Arithmetic::kInt8), want)) << to_string(isa) << " " << to_string(format);
    }
  }
}

// A cache of kSinkTokens equal keys but the first's, which takes nearly all of p and has a small V (an attention sink).
struct SinkCache {
  static constexpr int kDim = 16;
  static constexpr int kTokens = 256;
  explicit SinkCache(float value) : layout(kv::GroupLayout::make(1, kDim, std::vector<kv::LayerFormat>{kQ8})) {
    for (int b = 0; b < kTokens / kv::kBlockTokens; ++b) {
      owned.push_back(std::make_unique<AlignedBytes>(layout.block_bytes));
      blocks.push_back(owned.back()->data);
    }
    for (int t = 0; t < kTokens; ++t) {
      const std::vector<float> k(kDim, t == 0 ? 1.0f : 0.0f);
      const std::vector<float> v(kDim, t == 0 ? value / 1024 : value);
      std::byte* block = owned[static_cast<size_t>(t / kv::kBlockTokens)]->data;
      kernel_table(Isa::kRef).kv_write(k.data(), v.data(), kDim, layout.layers[0], block, t % kv::kBlockTokens);
    }
  }
  kv::KvView view() const { return kv::KvView::make(blocks.data(), layout, 0, 0); }

  kv::GroupLayout layout;
  std::vector<std::unique_ptr<AlignedBytes>> owned;
  std::vector<const std::byte*> blocks;
};

// Weights are integers over the largest p * s_v, not the largest p: what is not the sink keeps its bits.
TEST(AttentionValuesTest, ASinkLeavesTheOthersTheirBits) {
  set_float_mode();
  const SinkCache cache(1.0f);
  std::vector<float> q(SinkCache::kDim, 8.0f / SinkCache::kDim);  // the sink's score is 8, the others' 0
  std::vector<float> out(q.size());
  const uint32_t offset = 0;
  const int32_t position = SinkCache::kTokens - 1;
  const AttentionArgs args{
      .q = q.data(), .out = out.data(), .row_offset = &offset, .position = &position, .n_rows = 1, .kv = cache.view()};
  AlignedBytes scratch(attention_scratch_bytes(SinkCache::kDim));
  const double others = (SinkCache::kTokens - 1) * std::exp(-8.0);
  const double want = (1.0 / 1024 + others) / (1.0 + others);
  for (const Isa isa : supported_isas()) {
    attention(kernel_table(isa), Arithmetic::kInt8, args, scratch.data);
    for (const float x : out) EXPECT_NEAR(x, want, want * 1e-3) << to_string(isa);
  }
}

// V of zeros has scales of 0, and so are all weights; the smallest scale that f16 has still works.
TEST(AttentionValuesTest, ScalesOfZeroAndTheSmallest) {
  set_float_mode();
  constexpr float kSmallest = 0x1p-24f;
  for (const float value : {0.0f, 127 * kSmallest / 4}) {  // rotated, V is one dim four times as large

    const SinkCache cache(value);
    std::vector<float> q(SinkCache::kDim, 0.0f);
    std::vector<float> out(q.size());
    const uint32_t offset = 0;
    const int32_t position = SinkCache::kTokens - 1;
    const AttentionArgs args{.q = q.data(),
                             .out = out.data(),
                             .row_offset = &offset,
                             .position = &position,
                             .n_rows = 1,
                             .kv = cache.view()};
    AlignedBytes scratch(attention_scratch_bytes(SinkCache::kDim));
    const double want = value * 255.0 / 256.0;  // the sink's own rounds to 0
    for (const Isa isa : supported_isas()) {
      attention(kernel_table(isa), Arithmetic::kInt8, args, scratch.data);
      for (const float x : out) EXPECT_NEAR(x, want, want * 1e-3) << to_string(isa);
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels
