#include "tensor/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pagoda::tensor {
namespace {

TEST(AlignedBuffer, IsAlignedZeroedAndWritable) {
  for (const size_t size : {size_t{1}, size_t{64}, size_t{100'000}, (size_t{2} << 20), (size_t{5} << 20) + 123}) {
    auto made = AlignedBuffer::allocate(size);
    ASSERT_TRUE(made) << made.error().to_string();
    AlignedBuffer buffer = std::move(*made);
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (size < (2U << 20) ? 64U : 2U << 20), 0U);
    EXPECT_TRUE(std::ranges::all_of(buffer.bytes(), [](std::byte b) { return b == std::byte{0}; }));
    std::ranges::fill(buffer.bytes(), std::byte{7});
    EXPECT_EQ(buffer.as<uint32_t>().size(), size / 4);
  }
}

TEST(AlignedBuffer, MovesAndMayBeEmpty) {
  auto empty = AlignedBuffer::allocate(0);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->data(), nullptr);
  AlignedBuffer a = *AlignedBuffer::allocate(100);
  const std::byte* address = a.data();
  AlignedBuffer b = std::move(a);
  EXPECT_EQ(b.data(), address);
  EXPECT_EQ(a.data(), nullptr);
  *empty = std::move(b);
  EXPECT_EQ(empty->data(), address);
}

TEST(AlignedBuffer, AnImpossibleSizeIsAnError) {
  for (const size_t size : {std::numeric_limits<size_t>::max(), size_t{1} << 62}) {
    auto made = AlignedBuffer::allocate(size);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace pagoda::tensor
