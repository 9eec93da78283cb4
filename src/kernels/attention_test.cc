// Cache writes and attention: each instruction set against ref, bit for bit; ref against softmax attention in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/attention_fixture.h"
#include "tensor/float16.h"

namespace pagoda::kernels {
namespace {

using kv::KvType;
using kv::LayerFormat;

void expect_all_isas_agree(Rows& rows, const std::string& what) {
  for (const Arithmetic arithmetic : kAllArithmetics) {
    const std::vector<float> want = rows.run(Isa::kRef, arithmetic);
    for (const Isa isa : supported_isas()) {
      EXPECT_TRUE(same_bits(rows.run(isa, arithmetic), want))
          << to_string(isa) << " " << to_string(arithmetic) << " " << what;
    }
  }
}

class AttentionTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_float_mode(); }
  int head_dim() const { return GetParam(); }
};

// One decode token's head group, and chunks that cross block and span boundaries.
TEST_P(AttentionTest, EveryIsaGivesTheBitsOfRef) {
  for (const LayerFormat format : kFormats) {
    const Cache cache(format, head_dim(), 560);
    const struct {
      int first, n_rows, rows_per_token;
    } cases[] = {{0, 1, 1},   {0, 3, 1},    {31, 2, 2},   {32, 7, 7},  {255, 3, 3},
                 {256, 5, 5}, {250, 13, 1}, {500, 40, 3}, {511, 2, 1}, {559, 9, 9}};
    for (const auto& c : cases) {
      Rows rows(cache, run_of_positions(c.first, c.n_rows, c.rows_per_token));
      expect_all_isas_agree(rows, to_string(format) + " from " + std::to_string(c.first));
    }
  }
}

TEST_P(AttentionTest, WindowsAndDroppedBlocks) {
  for (const LayerFormat format : kFormats) {
    for (const int window : {1, 7, 33, 100, 256, 300, 1000}) {
      Cache cache(format, head_dim(), 560);
      constexpr int kFirst = 540;
      for (int b = 0; (b + 1) * kv::kBlockTokens <= kFirst - window + 1; ++b) cache.drop(b);
      Rows rows(cache, run_of_positions(kFirst, 20, 2));
      rows.args.window = window;
      expect_all_isas_agree(rows, to_string(format) + " window " + std::to_string(window));
    }
  }
}

// Rows of one call may be far apart: nobody sees the blocks between, which may be gone.
TEST_P(AttentionTest, RowsFarApart) {
  Cache cache(kQ8, head_dim(), 560);
  for (const int gone : {4, 5, 6, 7, 8, 9, 10, 11, 12}) cache.drop(gone);
  Rows rows(cache, {100, 101, 540, 541, 102, 559});
  rows.args.window = 20;
  expect_all_isas_agree(rows, "far apart");
}

TEST_P(AttentionTest, Softcap) {
  for (const LayerFormat format : {kBf16, kQ8}) {
    const Cache cache(format, head_dim(), 300);
    Rows rows(cache, run_of_positions(280, 12, 4));
    rows.args.softcap = 1.5f;
    expect_all_isas_agree(rows, "softcap");
  }
}

// A row alone, among others, in any order, with out over q: the same bits.
TEST_P(AttentionTest, ARowDependsOnItselfAlone) {
  for (const LayerFormat format : kFormats) {
    const Cache cache(format, head_dim(), 560);
    for (const Isa isa : supported_isas()) {
      if (isa == Isa::kRef) continue;
      for (const Arithmetic arithmetic : kAllArithmetics) {
        Rows all(cache, run_of_positions(240, kAttentionMaxRows, 3));
        const std::vector<float> want = all.run(isa, arithmetic);
        for (const size_t r : {0u, 1u, 17u, 40u, 63u}) {
          Rows one(cache, {all.position[r]});
          const auto width = static_cast<size_t>(head_dim());
          std::copy_n(all.q.begin() + all.offset[r], width, one.q.begin());
          one.args.out = one.q.data();
          AlignedBytes scratch(attention_scratch_bytes(head_dim()));
          attention(kernel_table(isa), arithmetic, one.args, scratch.data);
          const std::vector<float> got(one.q.begin(), one.q.begin() + head_dim());
          const auto from = want.begin() + all.offset[r];
          EXPECT_TRUE(same_bits(got, std::vector<float>(from, from + head_dim()))) << to_string(isa) << " row " << r;
        }
      }
    }
  }
}

// The spans of a call cut into runs: folded where the first span is, attended one by one and merged later where it is not.
TEST_P(AttentionTest, RunsOfSpansMergeToTheWhole) {
  const Cache cache(kQ8, head_dim(), 1100);
  const size_t size = static_cast<size_t>(partial_floats(head_dim()));
  for (const Isa isa : supported_isas()) {
    const KernelTable& table = kernel_table(isa);
    for (const Arithmetic arithmetic : kAllArithmetics) {
      Rows rows(cache, {1099, 255, 600, 1090});
      const std::vector<float> want = rows.run(isa, arithmetic);
      const Range spans = visible_spans(rows.args);
      ASSERT_EQ(spans.size(), 5);
      for (int cut = 1; cut < spans.end; ++cut) {
        std::vector<float> partial(4 * size);
        std::vector<float> next(4 * size);
        AlignedBytes scratch(attention_scratch_bytes(head_dim()));
        attention_fold(table, arithmetic, rows.args, {0, cut}, partial.data(), scratch.data);
        table.attention_prepare[static_cast<int>(arithmetic)](rows.args, scratch.data);
        for (int span = cut; span < spans.end; ++span) {
          table.attention_span[static_cast<int>(arithmetic)](rows.args, span, next.data(), scratch.data);
          table.attention_merge(partial.data(), next.data(), 4, head_dim());
        }
        std::vector<float> out(rows.q.size(), -7.0f);
        rows.args.out = out.data();
        table.attention_finish(rows.args, partial.data());
        EXPECT_TRUE(same_bits(out, want)) << to_string(isa) << " " << to_string(arithmetic) << " cut at " << cut;
      }
    }
  }
}

// softmax(q.K * scale, capped) V in double over what the cache holds.
std::vector<double> attend_in_double(const Cache& cache, const Rows& rows, int r) {
  const AttentionArgs& args = rows.args;
  const int head_dim = args.kv.head_dim;
  const int first = args.window == 0 ? 0 : std::max(0, args.position[r] - args.window + 1);
  std::vector<double> score;
  for (int t = first; t <= args.position[r]; ++t) {
    double dot = 0.0;
    for (int d = 0; d < head_dim; ++d) dot += rows.q[rows.offset[r] + d] * cache.k(t, d);
    dot *= args.scale;
    score.push_back(args.softcap == 0.0f ? dot : args.softcap * std::tanh(dot / args.softcap));
  }
  const double max = *std::max_element(score.begin(), score.end());
  double sum = 0.0;
  std::vector<double> out(static_cast<size_t>(head_dim));
  for (int t = first; t <= args.position[r]; ++t) {
    const double p = std::exp(score[t - first] - max);
    sum += p;
    for (int d = 0; d < head_dim; ++d) out[d] += p * cache.v(t, d);
  }
  for (double& x : out) x /= sum;
  return out;
}

TEST_P(AttentionTest, RefIsCloseToDouble) {
  for (const LayerFormat format : kFormats) {
    const Cache cache(format, head_dim(), 300);
    for (const int window : {0, 40}) {
      Rows rows(cache, {0, 31, 255, 256, 299});
      rows.args.window = window;
      rows.args.softcap = window == 0 ? 0.0f : 2.0f;
      for (const Arithmetic arithmetic : kAllArithmetics) {
        const bool is_int8 = arithmetic == Arithmetic::kInt8;
        const bool rounds_q = arithmetic == Arithmetic::kBf16 || (is_int8 && format.k == KvType::kInt8);
        const bool rounds_w = is_int8 && format.v == KvType::kInt8;
        const double bound = rounds_q ? 2e-2 : rounds_w ? 2e-4 : 2e-6;
        const std::vector<float> out = rows.run(Isa::kRef, arithmetic);
        for (int r = 0; r < rows.args.n_rows; ++r) {
          const std::vector<double> want = attend_in_double(cache, rows, r);
          for (int d = 0; d < head_dim(); ++d) {
            EXPECT_NEAR(out[rows.offset[r] + d], want[d], bound)
                << to_string(format) << " " << to_string(arithmetic) << " row " << r;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, CacheWritesFollowTheScaleRule) {
  for (const LayerFormat format : kFormats) {
    const Cache want(format, head_dim(), 40);
    for (const Isa isa : supported_isas()) {
      const Cache got(format, head_dim(), 40, isa);
      for (int b = 0; b < want.n_blocks(); ++b) {
        EXPECT_EQ(std::memcmp(got.bytes(b).data, want.bytes(b).data, want.bytes(b).size), 0) << to_string(isa);
      }
    }
    for (int t = 0; t < 40; ++t) {
      const float* k = &want.keys()[static_cast<size_t>(t * head_dim())];
      float amax = 0.0f;
      for (int d = 0; d < head_dim(); ++d) amax = std::max(amax, std::fabs(k[d]));
      const double scale = tensor::f16_to_f32(tensor::f32_to_f16(amax / 127.0f));
      for (int d = 0; d < head_dim(); ++d) {
        if (format.k == KvType::kInt8) {
          const double rounded = std::clamp(std::nearbyint(k[d] / static_cast<float>(scale)), -127.0f, 127.0f);
          EXPECT_EQ(want.k(t, d), rounded * scale);
        } else {
          EXPECT_EQ(want.k(t, d), tensor::bf16_to_f32(tensor::f32_to_bf16(k[d])));
        }
        EXPECT_NEAR(want.v(t, d), want.values()[static_cast<size_t>(t * head_dim() + d)], 6e-3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionTest, testing::Values(16, 48, 64, 80, 96, 128, 256));

TEST(KvWriteTest, EdgesOfTheScale) {
  set_float_mode();
  constexpr int kDim = 16;
  const LayerFormat layers[] = {kQ8};
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
      EXPECT_EQ(k[kv::k_index(KvType::kInt8, 5, d)], -127);
      EXPECT_EQ(k[kv::k_index(KvType::kInt8, 4, d)], 0x55) << "another slot was touched";
      EXPECT_EQ(v[kv::v_index(KvType::kInt8, kDim, 4, d)], 0x55);
    }
    EXPECT_EQ(k_scales[4], 0x5555);
  }
}

// What lies in slots that nobody sees yet (an earlier sequence's bytes, any scale) contributes exactly nothing.
TEST(AttentionValuesTest, StaleSlotsContributeNothing) {
  set_float_mode();
  constexpr int kDim = 48;
  constexpr int kTokens = 300;  // the last block holds 12
  for (const LayerFormat format : {kQ8, kK16V8}) {
    const Cache clean(format, kDim, kTokens);
    const Cache stale(format, kDim, kTokens);
    const kv::KvView view = stale.view();
    std::byte* head = stale.bytes(kTokens / kv::kBlockTokens).data + view.head_offset;
    for (int slot = kTokens % kv::kBlockTokens; slot < kv::kBlockTokens; ++slot) {
      reinterpret_cast<uint16_t*>(head + view.layer.v_scales)[slot] = slot % 2 == 0 ? 0x7E00 : 0x7BFF;  // NaN, largest
      for (int d = 0; d < kDim; ++d) head[view.layer.v + kv::v_index(KvType::kInt8, kDim, slot, d)] = std::byte{0x80};
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
  explicit SinkCache(float value) : layout(kv::GroupLayout::make(1, kDim, std::vector<LayerFormat>{kQ8})) {
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
  for (const float value : {0.0f, 127 * kSmallest}) {
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

TEST(AttentionSpanTest, ARowThatSeesNothingIsEmptyAndMergesAsNothing) {
  set_float_mode();
  constexpr int kDim = 64;
  const Cache cache(kQ8, kDim, 300);
  Rows rows(cache, {10, 290});
  for (const Isa isa : supported_isas()) {
    const KernelTable& table = kernel_table(isa);
    const size_t size = kPartialHeader + kDim;
    std::vector<float> first(2 * size, 1.0f);
    std::vector<float> second(2 * size, 1.0f);
    AlignedBytes scratch(attention_scratch_bytes(kDim));
    table.attention_prepare[0](rows.args, scratch.data);
    table.attention_span[0](rows.args, 0, first.data(), scratch.data);
    table.attention_span[0](rows.args, 1, second.data(), scratch.data);
    EXPECT_EQ(second[0], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(std::count(second.begin() + 1, second.begin() + size, 0.0f), static_cast<int>(size) - 1);

    std::vector<float> forward = first;
    table.attention_merge(forward.data(), second.data(), 1, kDim);
    EXPECT_TRUE(same_bits(forward, first));
    std::vector<float> backward = second;
    table.attention_merge(backward.data(), first.data(), 1, kDim);
    backward.resize(size);
    EXPECT_TRUE(same_bits(backward, std::vector<float>(first.begin(), first.begin() + size)));
  }
}

TEST(AttentionSpanTest, VisibleSpans) {
  const int32_t position[] = {300, 520, 90};
  AttentionArgs args;
  args.position = position;
  EXPECT_EQ(visible_spans(args).size(), 0);
  args.n_rows = 2;
  EXPECT_EQ(visible_spans(args).begin, 0);
  EXPECT_EQ(visible_spans(args).end, 3);
  args.window = 45;
  EXPECT_EQ(visible_spans(args).begin, 1);
  args.window = 46;
  EXPECT_EQ(visible_spans(args).begin, 0);
  args.n_rows = 3;
  args.window = 10;
  EXPECT_EQ(visible_spans(args).begin, 0);
  EXPECT_EQ(visible_spans(args).end, 3);
}

}  // namespace
}  // namespace pagoda::kernels
