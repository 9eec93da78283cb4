#include "kv/tier_format.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/digest.h"

namespace pagoda::kv {
namespace {

constexpr char kSegmentMagic[] = "PGDAKVSG";
constexpr char kValueMagic[] = "PGDAKVAL";
constexpr uint32_t kRecordMagic = 0x524b4750;  // "PGKR"
constexpr uint32_t kVersion = 1;               // of all three formats
constexpr uint16_t kStateWhole = 1, kStateBad = 2;
constexpr size_t kHeaderCrcAt = 60, kRecordCrcAt = 60, kValueCrcAt = 60;

// Writes fields one behind the other.
class Writer {
 public:
  explicit Writer(std::span<std::byte> to) : to_(to) {}
  Writer& magic(const char* text) {
    std::memcpy(to_.data() + at_, text, 8);
    at_ += 8;
    return *this;
  }
  template <typename T>
  Writer& number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) to_[at_++] = static_cast<std::byte>(value >> (8 * i));
    return *this;
  }
  Writer& key(const TierKey& key) {
    std::ranges::copy(key.bytes, to_.begin() + static_cast<ptrdiff_t>(at_));
    at_ += key.bytes.size();
    return *this;
  }

 private:
  std::span<std::byte> to_;
  size_t at_ = 0;
};

// Requires that the bytes are there: callers check the length of the whole first.
template <typename T>
T read_number(std::span<const std::byte> from, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(std::to_integer<uint8_t>(from[at + i])) << (8 * i)));
  }
  return value;
}
TierKey read_key(std::span<const std::byte> from, size_t at) {
  TierKey key;
  std::ranges::copy(from.subspan(at, key.bytes.size()), key.bytes.begin());
  return key;
}
bool has_magic(std::span<const std::byte> bytes, const char* magic) {
  return bytes.size() >= 8 && std::memcmp(bytes.data(), magic, 8) == 0;
}
bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

uint32_t record_crc(const SegmentShape& shape, std::span<const std::byte> record) {
  std::array<std::byte, 8> id;
  Writer(id).number(shape.id);
  return crc32c(record.first(kRecordCrcAt), crc32c(id));
}

}  // namespace

uint64_t round_to_page(uint64_t bytes) { return (bytes + kTierPageBytes - 1) / kTierPageBytes * kTierPageBytes; }

uint64_t SegmentShape::slots_begin() const { return kTierPageBytes + round_to_page(n_slots * kSlotRecordBytes); }

std::array<std::byte, kSegmentHeaderBytes> encode_segment_header(const SegmentShape& shape) {
  std::array<std::byte, kSegmentHeaderBytes> bytes{};
  Writer(bytes)
      .magic(kSegmentMagic)
      .number(kVersion)
      .number(static_cast<uint32_t>(shape.use))
      .number(shape.id)
      .number(shape.slot_bytes)
      .number(shape.n_slots)
      .number(shape.file_bytes());
  Writer(std::span(bytes).subspan(kHeaderCrcAt)).number(crc32c(std::span(bytes).first(kHeaderCrcAt)));
  return bytes;
}

Result<SegmentShape> parse_segment_header(std::span<const std::byte> bytes, uint64_t file_bytes) {
  if (bytes.size() < kSegmentHeaderBytes) return fail(ErrorCode::kBadFile, "too short for a segment header");
  if (!has_magic(bytes, kSegmentMagic)) return fail(ErrorCode::kBadFile, "not a segment of this store");
  const auto version = read_number<uint32_t>(bytes, 8);
  if (version != kVersion) {
    return fail(ErrorCode::kUnsupported, "segment format {}; this build reads {}", version, kVersion);
  }
  if (read_number<uint32_t>(bytes, kHeaderCrcAt) != crc32c(bytes.first(kHeaderCrcAt))) {
    return fail(ErrorCode::kBadFile, "the header's checksum is wrong");
  }
  const auto use = read_number<uint32_t>(bytes, 12);
  if (use > static_cast<uint32_t>(TierUse::kReplay))
    return fail(ErrorCode::kBadFile, "blocks of an unknown use: {}", use);
  const SegmentShape shape{.id = read_number<uint64_t>(bytes, 16),
                           .slot_bytes = read_number<uint64_t>(bytes, 24),
                           .n_slots = read_number<uint64_t>(bytes, 32),
                           .use = static_cast<TierUse>(use)};
  const bool is_sane = shape.slot_bytes > 0 && shape.slot_bytes % kTierPageBytes == 0 &&
                       shape.slot_bytes <= round_to_page(kMaxTierObjectBytes) && shape.n_slots > 0 &&
                       shape.n_slots <= kMaxSegmentSlots;
  if (!is_sane || read_number<uint64_t>(bytes, 40) != shape.file_bytes()) {
    return fail(ErrorCode::kBadFile, "the header's sizes do not add up");
  }
  if (file_bytes != shape.file_bytes()) {
    return fail(ErrorCode::kBadFile, "{} bytes long instead of {}", file_bytes, shape.file_bytes());
  }
  return shape;
}

std::array<std::byte, kSlotRecordBytes> encode_slot_record(const SegmentShape& shape, uint64_t slot,
                                                           const SlotRecord& record, SlotState state) {
  std::array<std::byte, kSlotRecordBytes> bytes{};
  if (state == SlotState::kFree) return bytes;
  Writer(bytes)
      .number(kRecordMagic)
      .number(static_cast<uint16_t>(kVersion))
      .number(state == SlotState::kWhole ? kStateWhole : kStateBad)
      .key(record.object.key)
      .number(record.object.group.value)
      .number(record.crc)
      .number(record.bytes)
      .number(static_cast<uint32_t>(slot));
  Writer(std::span(bytes).subspan(kRecordCrcAt)).number(record_crc(shape, bytes));
  return bytes;
}

ParsedSlot parse_slot_record(const SegmentShape& shape, uint64_t slot, std::span<const std::byte> bytes) {
  CHECK(bytes.size() == kSlotRecordBytes);
  if (is_zero(bytes)) return {};
  const SlotRecord record{.object = {.key = read_key(bytes, 8), .group = GroupId(read_number<uint32_t>(bytes, 40))},
                          .bytes = read_number<uint64_t>(bytes, 48),
                          .crc = read_number<uint32_t>(bytes, 44)};
  const bool is_whole = read_number<uint32_t>(bytes, 0) == kRecordMagic &&
                        read_number<uint16_t>(bytes, 4) == kVersion && read_number<uint16_t>(bytes, 6) == kStateWhole &&
                        read_number<uint32_t>(bytes, 56) == slot &&
                        read_number<uint32_t>(bytes, kRecordCrcAt) == record_crc(shape, bytes) && record.bytes > 0 &&
                        record.bytes <= shape.slot_bytes;
  if (!is_whole) return {.state = SlotState::kBad, .record = {}};
  return {.state = SlotState::kWhole, .record = record};
}

std::array<std::byte, kTierValueHeaderBytes> encode_tier_value_header(const SlotRecord& record) {
  std::array<std::byte, kTierValueHeaderBytes> bytes{};
  Writer(bytes)
      .magic(kValueMagic)
      .number(kVersion)
      .number(record.object.group.value)
      .key(record.object.key)
      .number(record.bytes)
      .number(record.crc);
  Writer(std::span(bytes).subspan(kValueCrcAt)).number(crc32c(std::span(bytes).first(kValueCrcAt)));
  return bytes;
}

std::variant<std::span<const std::byte>, TierFault> parse_tier_value(std::span<const std::byte> value,
                                                                     const TierObject& object, size_t payload_bytes) {
  if (value.size() < kTierValueHeaderBytes || !has_magic(value, kValueMagic)) return TierFault::kRefused;
  if (read_number<uint32_t>(value, 8) != kVersion) return TierFault::kRefused;
  if (read_number<uint32_t>(value, kValueCrcAt) != crc32c(value.first(kValueCrcAt))) return TierFault::kCorrupt;
  if (read_number<uint32_t>(value, 12) != object.group.value || read_key(value, 16) != object.key) {
    return TierFault::kRefused;
  }
  const std::span<const std::byte> payload = value.subspan(kTierValueHeaderBytes);
  if (read_number<uint64_t>(value, 48) != payload_bytes) return TierFault::kRefused;
  if (payload.size() != payload_bytes || crc32c(payload) != read_number<uint32_t>(value, 56)) {
    return TierFault::kCorrupt;
  }
  return payload;
}

}  // namespace pagoda::kv
