#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/error.h"
#include "base/id.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "base/ring.h"

namespace pagoda {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<int> half(int n) {
  if (n % 2 != 0) return fail(ErrorCode::kInvalidArgument, "{} is odd", n);
  return n / 2;
}
Result<int> quarter(int n) {
  TRY_ASSIGN(const int h, half(n));
  TRY(half(h));
  return h / 2;
}

TEST(ErrorTest, TryPassesTheFirstErrorUp) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(7).error().message, "7 is odd");
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_EQ((Error{ErrorCode::kBadFile, "bad", "x:12"}).to_string(), "bad (x:12)");
}

TEST(CheckDeathTest, NamesExpressionAndPlace) { EXPECT_DEATH(CHECK(1 + 1 == 3), "1 \\+ 1 == 3 at .*base_test.cc"); }

// Vectors: FIPS 180-2 ("abc"), RFC 4231 case 2, xxHash's own documentation (XXH3 of the empty input, seed 0).
TEST(DigestTest, KnownVectors) {
  EXPECT_EQ(to_hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(xxh3_64({})), "2d06800538d394c2");
  std::array<std::byte, 2> bytes{};
  EXPECT_TRUE(from_hex("0aFf", bytes));
  EXPECT_EQ(to_hex(bytes), "0aff");
  for (const char* wrong : {"", "0af", "0aff0", "0ag0", "0a f"}) EXPECT_FALSE(from_hex(wrong, bytes)) << wrong;
  EXPECT_TRUE(equal_in_constant_time(bytes_of("abc"), bytes_of("abc")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abc"), bytes_of("abd")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abc"), bytes_of("ab")));
  // RFC 3720 B.4: 32 bytes of zeroes.
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8A9136AAu);
  EXPECT_EQ(crc32c(bytes_of("c"), crc32c(bytes_of("ab"))), crc32c(bytes_of("abc")));
  Xxh3Stream stream;
  stream.update(bytes_of("ab"));
  stream.update(bytes_of("c"));
  EXPECT_EQ(stream.digest(), xxh3_64(bytes_of("abc")));
}

// Vectors: Random123's kat_vectors for philox4x32 10.
TEST(RandomTest, PhiloxKnownVectors) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(RandomTest, UniformStaysInRangeAndDependsOnEveryKey) {
  for (uint32_t i = 0; i < 1000; ++i) {
    const double u = uniform(7, 0, i, 0);
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
  const double u = uniform(1, 2, 3, 4);
  EXPECT_NE(u, uniform(2, 2, 3, 4));
  EXPECT_NE(u, uniform(1, 3, 3, 4));
  EXPECT_NE(u, uniform(1, 2, 4, 4));
  EXPECT_NE(u, uniform(1, 2, 3, 5));
}

TEST(RingTest, DropsAndCountsWhenFull) {
  Ring<int> ring(3);
  ASSERT_EQ(ring.capacity(), 4u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(ring.push(i), i < 4);
  EXPECT_EQ(ring.dropped(), 2u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(ring.pop(), i);
  EXPECT_EQ(ring.pop(), std::nullopt);
}

TEST(RingTest, KeepsOrderBetweenTwoThreads) {
  Ring<uint32_t> ring(64);
  constexpr uint32_t kCount = 20000;
  std::thread producer([&] {
    for (uint32_t i = 0; i < kCount;) {
      if (ring.push(i))
        ++i;
      else
        std::this_thread::yield();
    }
  });
  for (uint32_t next = 0; next < kCount;) {
    if (const auto got = ring.pop()) {
      ASSERT_EQ(*got, next);
      ++next;
    } else {
      std::this_thread::yield();
    }
  }
  producer.join();
}

TEST(MappedFileTest, MapsDropsAndRefuses) {
  const auto dir = std::filesystem::temp_directory_path() / "pagoda_mapped_file_test";
  std::filesystem::create_directories(dir);
  const std::string text(20000, 'p');
  std::ofstream(dir / "a") << text;
  std::ofstream(dir / "empty");
  auto file = MappedFile::open(dir / "a");
  ASSERT_TRUE(file);
  file->drop(0, file->bytes().size());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()), text);
  EXPECT_EQ(MappedFile::open(dir / "empty").error().code, ErrorCode::kBadFile);
  EXPECT_EQ(MappedFile::open(dir).error().code, ErrorCode::kBadFile);
  EXPECT_EQ(MappedFile::open(dir / "none").error().code, ErrorCode::kNotFound);
  std::filesystem::remove_all(dir);
}

TEST(ClockTest, FakeStandsStillUntilTold) {
  FakeClock clock;
  clock.advance_us(5);
  EXPECT_EQ(clock.now_us(), 5);
  EXPECT_GT(SteadyClock().now_us(), 0);
}

}  // namespace
}  // namespace pagoda
