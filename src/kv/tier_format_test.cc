// Keys and the bytes of tiers: stable across builds, and no flipped bit passes.
#include "kv/tier_format.h"

#include <gtest/gtest.h>

#include "base/digest.h"
#include "kv/test_tier_world.h"
#include "kv/tier_meter.h"

namespace pagoda::kv {
namespace {

constexpr SegmentShape kShape{.id = 7, .slot_bytes = 8192, .n_slots = 100};
SlotRecord record() { return {.object = test_object(1, 2), .bytes = 5000, .crc = 0x1234}; }

std::array<TokenId, kBlockTokens> tokens(int32_t first) {
  std::array<TokenId, kBlockTokens> run;
  for (int32_t i = 0; i < kBlockTokens; ++i) run[static_cast<size_t>(i)] = TokenId(first + i);
  return run;
}

template <size_t kBytes>
void expect_every_flip_refused(const std::array<std::byte, kBytes>& good, auto&& is_refused) {
  for (size_t bit = 0; bit < kBytes * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_TRUE(is_refused(bytes)) << "bit " << bit;
  }
}

// Other programs and other builds must find the same keys: these may only change with the tags in tier.cc.
TEST(TierKey, IsTheSameEverywhere) {
  const TierKey root = tier_root(std::as_bytes(std::span("root", 4)));
  const TierKey first = tier_key(root, tokens(0));
  EXPECT_EQ(to_hex(root.bytes), "1e8d6a2163eabcea8638f033da62e38d2c1cf2ef40a7e39164a720bcf2a68866");
  EXPECT_EQ(to_hex(first.bytes), "3885edd0404ba17e4e36c1f02fa6d722cc06eb1eadb9cb0b88500ee5749c1f87");
}

TEST(TierKey, FollowsFromRootParentAndTokens) {
  const TierKey root = tier_root(std::as_bytes(std::span("root", 4)));
  const TierKey other = tier_root(std::as_bytes(std::span("Root", 4)));
  EXPECT_NE(tier_key(root, tokens(0)), tier_key(other, tokens(0)));
  EXPECT_NE(tier_key(root, tokens(0)), tier_key(root, tokens(1)));
  EXPECT_NE(tier_key(tier_key(root, tokens(0)), tokens(0)), tier_key(root, tokens(0)));
  EXPECT_NE(tier_root({}), root);
}

TEST(TierFormat, SegmentHeaderComesBack) {
  const auto bytes = encode_segment_header(kShape);
  const auto shape = parse_segment_header(bytes, kShape.file_bytes());
  ASSERT_TRUE(shape.has_value());
  EXPECT_EQ(shape->id, kShape.id);
  EXPECT_EQ(shape->slot_bytes, kShape.slot_bytes);
  EXPECT_EQ(shape->n_slots, kShape.n_slots);
  EXPECT_EQ(shape->use, TierUse::kContext);
  expect_every_flip_refused(bytes, [](auto& b) { return !parse_segment_header(b, kShape.file_bytes()); });
  SegmentShape replay = kShape;
  replay.use = TierUse::kReplay;
  EXPECT_EQ(parse_segment_header(encode_segment_header(replay), kShape.file_bytes())->use, TierUse::kReplay);
  replay.use = static_cast<TierUse>(2);
  EXPECT_FALSE(parse_segment_header(encode_segment_header(replay), kShape.file_bytes()));
}

TEST(TierFormat, SegmentHeaderOfAnotherLengthOrVersionIsRefused) {
  auto bytes = encode_segment_header(kShape);
  EXPECT_FALSE(parse_segment_header(bytes, kShape.file_bytes() - 1));
  EXPECT_FALSE(parse_segment_header(std::span(bytes).first(63), kShape.file_bytes()));
  EXPECT_FALSE(parse_segment_header({}, 0));
  bytes[8] = std::byte{2};
  const auto future = parse_segment_header(bytes, kShape.file_bytes());
  ASSERT_FALSE(future.has_value());
  EXPECT_EQ(future.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(future.error().message, "segment format 2; this build reads 1");
}

TEST(TierFormat, RecordBelongsToItsSlotAndSegment) {
  const auto bytes = encode_slot_record(kShape, 3, record(), SlotState::kWhole);
  const ParsedSlot parsed = parse_slot_record(kShape, 3, bytes);
  ASSERT_EQ(parsed.state, SlotState::kWhole);
  EXPECT_EQ(parsed.record.object, record().object);
  EXPECT_EQ(parsed.record.bytes, record().bytes);
  EXPECT_EQ(parsed.record.crc, record().crc);
  EXPECT_EQ(parse_slot_record(kShape, 4, bytes).state, SlotState::kBad);
  SegmentShape other = kShape;
  other.id = 8;
  EXPECT_EQ(parse_slot_record(other, 3, bytes).state, SlotState::kBad);
  expect_every_flip_refused(bytes, [](auto& b) { return parse_slot_record(kShape, 3, b).state == SlotState::kBad; });
}

TEST(TierFormat, RecordStates) {
  EXPECT_EQ(parse_slot_record(kShape, 3, encode_slot_record(kShape, 3, record(), SlotState::kFree)).state,
            SlotState::kFree);
  EXPECT_EQ(parse_slot_record(kShape, 3, encode_slot_record(kShape, 3, record(), SlotState::kBad)).state,
            SlotState::kBad);
  SlotRecord too_long = record();
  too_long.bytes = kShape.slot_bytes + 1;
  EXPECT_EQ(parse_slot_record(kShape, 3, encode_slot_record(kShape, 3, too_long, SlotState::kWhole)).state,
            SlotState::kBad);
}

std::vector<std::byte> value_of(const TierObject& object, size_t n_bytes) {
  const std::vector<std::byte> payload = bytes_of(object, n_bytes);
  const auto header = encode_tier_value_header({.object = object, .bytes = n_bytes, .crc = crc32c(payload)});
  std::vector<std::byte> value(header.begin(), header.end());
  value.insert(value.end(), payload.begin(), payload.end());
  return value;
}

TEST(TierFormat, ValueComesBackWholeOrNot) {
  const TierObject object = test_object(5, 1);
  const std::vector<std::byte> value = value_of(object, 300);
  const auto parsed = parse_tier_value(value, object, 300);
  ASSERT_TRUE(std::holds_alternative<std::span<const std::byte>>(parsed));
  EXPECT_TRUE(std::ranges::equal(std::get<std::span<const std::byte>>(parsed), bytes_of(object, 300)));

  const auto fault = [&](std::span<const std::byte> v, const TierObject& o, size_t n) {
    const auto refused = parse_tier_value(v, o, n);
    return std::holds_alternative<TierFault>(refused) ? std::optional(std::get<TierFault>(refused)) : std::nullopt;
  };
  EXPECT_EQ(fault(value, test_object(6, 1), 300), TierFault::kRefused);
  EXPECT_EQ(fault(value, test_object(5, 2), 300), TierFault::kRefused);
  EXPECT_EQ(fault(value, object, 301), TierFault::kRefused);
  for (size_t n = 0; n < value.size(); ++n) ASSERT_TRUE(fault(std::span(value).first(n), object, 300)) << n;
  for (size_t bit = 0; bit < value.size() * 8; ++bit) {
    std::vector<std::byte> flipped = value;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_TRUE(fault(flipped, object, 300)) << bit;
  }
}

TEST(RateMeter, CountsTransfersSideBySideOnce) {
  RateMeter meter;
  meter.begin(0);
  meter.begin(0);
  meter.end(1000, 1'000'000);
  meter.end(1000, 1'000'000);
  EXPECT_NEAR(meter.bytes_per_s(), 2e9, 1);
  for (int i = 0; i < 400; ++i) {
    meter.begin(i * 10'000);
    meter.end(i * 10'000 + 2000, 1'000'000);
  }
  EXPECT_NEAR(meter.bytes_per_s(), 5e8, 5e7);
}

TEST(RateMeter, FailuresCostTheirTime) {
  RateMeter meter;
  meter.begin(0);
  meter.end(1000, 1'000'000);
  meter.begin(2000);
  meter.end(2'002'000, 0);  // two seconds for nothing
  EXPECT_LT(meter.bytes_per_s(), 5e8);
}

TEST(WritePace, LetsASecondThroughAtOnce) {
  WritePace pace(1000);
  EXPECT_LE(pace.ready_at_us(), 0);
  pace.spend(0, 1000);
  EXPECT_LE(pace.ready_at_us(), 0);
  pace.spend(0, 500);
  EXPECT_EQ(pace.ready_at_us(), 500'000);
  WritePace open(0);
  open.spend(5, size_t{1} << 40);
  EXPECT_LE(open.ready_at_us(), 5);
}

}  // namespace
}  // namespace pagoda::kv
