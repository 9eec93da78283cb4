#include "kv/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "kv/view.h"

namespace pagoda::kv {
namespace {

constexpr LayerFormat kBf16{KvType::kBf16, KvType::kBf16};
constexpr LayerFormat kQ8{KvType::kInt8, KvType::kInt8};
constexpr LayerFormat kMixed{KvType::kBf16, KvType::kInt8};
constexpr LayerFormat kQ4{KvType::kInt4, KvType::kInt4};
constexpr LayerFormat kK8V4{KvType::kInt8, KvType::kInt4};

size_t bits_of(KvType type) { return type == KvType::kInt4 ? 4 : type == KvType::kInt8 ? 8 : 16; }

TEST(LayoutTest, BytesOfKnownModels) {
  // SmolLM2-135M: 30 layers, 3 KV heads of 64. 132 bytes of values and scales per token and head pair at q8.
  const std::vector<LayerFormat> q8(30, kQ8);
  const GroupLayout smol = GroupLayout::make(3, 64, q8);
  EXPECT_EQ(smol.block_bytes, 30u * 3 * 32 * 132);
  EXPECT_EQ(smol.bytes_per_token(), 11880u);
  EXPECT_EQ(GroupLayout::make(3, 64, std::vector<LayerFormat>(30, kQ4)).bytes_per_token(), 30u * 3 * 68);
  EXPECT_EQ(GroupLayout::make(3, 64, std::vector<LayerFormat>(30, kK8V4)).bytes_per_token(), 30u * 3 * 100);
  // Llama-2 7B in 16 bits: 524,288 bytes a token, 1 GiB at 2,048 tokens.
  const std::vector<LayerFormat> bf16(32, kBf16);
  EXPECT_EQ(GroupLayout::make(32, 128, bf16).bytes_per_token() * 2048, size_t{1} << 30);
}

TEST(LayoutTest, PartsAreAlignedAndDisjoint) {
  for (const int head_dim : {16, 32, 48, 64, 80, 96, 128, 256}) {
    const std::vector<LayerFormat> formats{kBf16, kQ8, kMixed, {KvType::kInt8, KvType::kBf16}, kQ4, kK8V4};
    const GroupLayout group = GroupLayout::make(3, head_dim, formats);
    size_t expected_offset = 0;
    for (size_t i = 0; i < formats.size(); ++i) {
      const LayerLayout& layer = group.layers[i];
      EXPECT_EQ(layer.format, formats[i]);
      EXPECT_EQ(layer.offset, expected_offset);
      for (const size_t part : {layer.offset, layer.head_bytes, layer.k_scales, layer.v, layer.v_scales}) {
        EXPECT_EQ(part % 64, 0u);
      }
      const size_t last_k = k_index(formats[i].k, 31, head_dim - 1) * bits_of(formats[i].k) / 8;
      const size_t last_v = v_index(formats[i].v, head_dim, 31, head_dim - 1) * bits_of(formats[i].v) / 8;
      EXPECT_GT(layer.k_scales, last_k);
      EXPECT_GE(layer.v, layer.k_scales + (is_scaled(formats[i].k) ? 64 : 0));
      EXPECT_GT(layer.v_scales, layer.v + last_v);
      EXPECT_GE(layer.head_bytes, layer.v_scales + (is_scaled(formats[i].v) ? 64 : 0));
      expected_offset += 3 * layer.head_bytes;
    }
    EXPECT_EQ(group.block_bytes, expected_offset);
  }
}

TEST(LayoutTest, NoAlignmentLossAtSupportedSizes) {
  for (const int head_dim : {64, 96, 128, 256}) {
    for (const LayerFormat format : {kBf16, kQ8, kMixed, kQ4, kK8V4}) {
      const GroupLayout group = GroupLayout::make(2, head_dim, std::vector<LayerFormat>{format});
      const size_t exact = 2 * token_head_bytes(format, head_dim);
      EXPECT_EQ(group.bytes_per_token(), exact) << head_dim << " " << to_string(format);
    }
  }
}

TEST(LayoutTest, Names) {
  EXPECT_EQ(to_string(kBf16), "bf16");
  EXPECT_EQ(to_string(kQ8), "q8");
  EXPECT_EQ(to_string(kMixed), "k16v8");
  EXPECT_EQ(to_string(LayerFormat{KvType::kInt8, KvType::kBf16}), "k8v16");
  EXPECT_EQ(to_string(kQ4), "q4");
  EXPECT_EQ(to_string(kK8V4), "k8v4");
}

TEST(ViewTest, PointsIntoTheHead) {
  const GroupLayout group = GroupLayout::make(2, 64, std::vector<LayerFormat>{kBf16, kQ8});
  std::vector<std::byte> bytes(2 * group.block_bytes);
  const std::byte* blocks[] = {nullptr, bytes.data() + group.block_bytes};
  const KvView view = KvView::make(blocks, group, 1, 1);
  const LayerLayout& layer = group.layers[1];
  const std::byte* head = blocks[1] + layer.offset + layer.head_bytes;
  EXPECT_EQ(view.k(1), head);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(view.k_scales(1)), head + layer.k_scales);
  EXPECT_EQ(view.v(1), head + layer.v);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(view.v_scales(1)), head + layer.v_scales);
  EXPECT_EQ(view.head_dim, 64);
}

TEST(IdsTest, BlockIdHoldsExtentAndSlot) {
  const BlockId id = BlockId::at(200000, 16383);
  EXPECT_EQ(id.extent(), 200000u);
  EXPECT_EQ(id.slot(), 16383u);
  EXPECT_FALSE(id.is_none());
  EXPECT_TRUE(kNoBlock.is_none());
}

// No two elements lie in the same place, and those that share a byte are one token's.
TEST(LayoutTest, SlotsShareNoByte) {
  for (const int head_dim : {16, 48, 64, 80}) {
    for (const KvType type : {KvType::kInt4, KvType::kInt8, KvType::kBf16}) {
      std::map<size_t, int> k_bytes, v_bytes;  // the slot of each
      std::set<size_t> k, v;
      for (int slot = 0; slot < kBlockTokens; ++slot) {
        for (int dim = 0; dim < head_dim; ++dim) {
          const size_t k_at = k_index(type, slot, dim), v_at = v_index(type, head_dim, slot, dim);
          EXPECT_TRUE(k.insert(k_at).second && v.insert(v_at).second);
          EXPECT_EQ(k_bytes.emplace(k_at * bits_of(type) / 8, slot).first->second, slot);
          EXPECT_EQ(v_bytes.emplace(v_at * bits_of(type) / 8, slot).first->second, slot);
        }
      }
    }
  }
}

TEST(LayoutTest, CopiesTokensAndZeroesTheRest) {
  const std::vector<LayerFormat> formats{kQ8, kBf16, kMixed, {KvType::kInt8, KvType::kBf16}, kQ4, kK8V4};
  constexpr int kHeadDim = 96, kHeads = 2;
  const GroupLayout group = GroupLayout::make(kHeads, kHeadDim, formats);
  const std::vector<std::byte> from(group.block_bytes, std::byte{0x55});
  for (const int n : {0, 1, 2, 7, 31, 32}) {
    std::vector<std::byte> to(group.block_bytes, std::byte{0xAA}), expected(group.block_bytes);
    for (const LayerLayout& layer : group.layers) {
      for (int head = 0; head < kHeads; ++head) {
        const auto set = [&](size_t part, size_t index, KvType type) {
          const size_t at =
              layer.offset + static_cast<size_t>(head) * layer.head_bytes + part + index * bits_of(type) / 8;
          std::fill_n(expected.begin() + static_cast<ptrdiff_t>(at), type == KvType::kBf16 ? 2 : 1, std::byte{0x55});
        };
        for (int slot = 0; slot < n; ++slot) {
          for (int dim = 0; dim < kHeadDim; ++dim) {
            set(0, k_index(layer.format.k, slot, dim), layer.format.k);
            set(layer.v, v_index(layer.format.v, kHeadDim, slot, dim), layer.format.v);
          }
          const auto scale = static_cast<size_t>(slot);
          if (is_scaled(layer.format.k)) set(layer.k_scales, scale, KvType::kBf16);
          if (is_scaled(layer.format.v)) set(layer.v_scales, scale, KvType::kBf16);
        }
      }
    }
    copy_tokens(group, n, from.data(), to.data());
    EXPECT_TRUE(to == expected) << n;
  }
}

}  // namespace
}  // namespace pagoda::kv
