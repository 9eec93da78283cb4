// Cache writes and attention: each instruction set against ref, bit for bit; ref against softmax attention in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "kernels/attention_fixture.h"
#include "kernels/rotation.h"
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
  template <typename Get>
  void expect_scale_rule(KvType type, const float* x, Get get) const;
};

// One decode token's head group, and chunks that cross block and span boundaries.
TEST_P(AttentionTest, EveryIsaGivesTheBitsOfRef) {
  for (const LayerFormat format : kFormats) {
    const Cache cache(format, head_dim(), 560);
    const struct {
      int first, n_rows, rows_per_token;
    } cases[] = {{0, 1, 1},   {0, 3, 1},   {31, 2, 2},   {32, 7, 7},  {255, 3, 3},
                 {256, 5, 5}, {490, 7, 1}, {250, 40, 3}, {511, 2, 1}, {559, 9, 9}};
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
      constexpr int kFirst = 542;  // two tokens, and one in the next block
      for (int b = 0; (b + 1) * kv::kBlockTokens <= kFirst - window + 1; ++b) cache.drop(b);
      Rows rows(cache, run_of_positions(kFirst, 6, 2));
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

// rotation.h in double, as a matrix.
void rotate_in_double(double* x, int head_dim) {
  const int run = rotation_run(head_dim);
  for (int first = 0; first < head_dim; first += run) {
    std::vector<double> out(static_cast<size_t>(run));
    for (int i = 0; i < run; ++i) {
      for (int j = 0; j < run; ++j)
        out[i] += std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? x[first + j] : -x[first + j];
    }
    for (int i = 0; i < run; ++i) x[first + i] = out[i] / std::sqrt(run);
  }
}

// softmax(q.K * scale, capped) V in double over what the cache holds.
std::vector<double> attend_in_double(const Cache& cache, const Rows& rows, int r) {
  const AttentionArgs& args = rows.args;
  const int head_dim = args.kv.head_dim;
  const int first = args.window == 0 ? 0 : std::max(0, args.position[r] - args.window + 1);
  std::vector<double> q(rows.q.begin() + rows.offset[r], rows.q.begin() + rows.offset[r] + head_dim);
  if (kv::is_scaled(args.kv.layer.format.k)) rotate_in_double(q.data(), head_dim);
  std::vector<double> score;
  for (int t = first; t <= args.position[r]; ++t) {
    double dot = 0.0;
    for (int d = 0; d < head_dim; ++d) dot += q[d] * cache.k(t, d);
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
  if (kv::is_scaled(args.kv.layer.format.v)) rotate_in_double(out.data(), head_dim);
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
        const bool rounds_q = arithmetic == Arithmetic::kBf16 || (is_int8 && kv::is_scaled(format.k));
        const bool rounds_w = is_int8 && kv::is_scaled(format.v);
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

// What the cache holds of a row x.
template <typename Get>
void AttentionTest::expect_scale_rule(KvType type, const float* x, Get get) const {
  std::vector<float> row(x, x + head_dim());
  if (kv::is_scaled(type)) rotate(row.data(), head_dim());
  float amax = 0.0f;
  for (const float value : row) amax = std::max(amax, std::fabs(value));
  const float largest = type == KvType::kInt4 ? 15.0f : 127.0f;
  const float scale = tensor::f16_to_f32(tensor::f32_to_f16(amax / largest));
  for (int d = 0; d < head_dim(); ++d) {
    const float value = row[static_cast<size_t>(d)];
    if (type == KvType::kBf16) {
      EXPECT_EQ(get(d), tensor::bf16_to_f32(tensor::f32_to_bf16(value)));
    } else if (type == KvType::kInt8) {
      EXPECT_EQ(get(d), double{scale} * std::clamp(std::nearbyint(value / scale), -127.0f, 127.0f));
    } else {
      EXPECT_NEAR(get(d), value, scale * 1.01);
      EXPECT_EQ(std::fmod(std::fabs(get(d) / scale), 2.0), 1.0) << "an odd multiple of the scale";
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
      const auto from = static_cast<size_t>(t * head_dim());
      expect_scale_rule(format.k, &want.keys()[from], [&](int d) { return want.k(t, d); });
      expect_scale_rule(format.v, &want.values()[from], [&](int d) { return want.v(t, d); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionTest, testing::Values(16, 48, 64, 80, 96, 128, 256));

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
