// The bytes that tiers write and, much later or from a stranger, read: segment headers, slot records, Redis values. All little-endian.
//
// segment file   [header page 4096][record table: n_slots x 64, padded to 4096][slot 0][slot 1]...     of one slot size
//   header  64 B   magic "PGDAKVSG", u32 version, u32 use, u64 segment id, u64 slot bytes, u64 slots, u64 file bytes, 12 x 0, u32 CRC32C
//   record  64 B   u32 magic, u16 version, u16 state, key[32], u32 group, u32 payload CRC32C, u64 payload bytes, u32 slot,
//                  u32 CRC32C over all that and the segment id: a record copied to another place is no record. All zero: a free slot
// Redis value    [header 64 B][block bytes]
//   header  64 B   magic "PGDAKVAL", u32 version, u32 group, key[32], u64 payload bytes, u32 payload CRC32C, u32 CRC32C of the rest
//
// Parsers take any bytes of any length and never read past the end; none allocates but for an error's message.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <variant>

#include "base/error.h"
#include "kv/tier.h"

namespace pagoda::kv {

inline constexpr uint64_t kTierPageBytes = 4096;
inline constexpr size_t kSegmentHeaderBytes = 64;
inline constexpr size_t kSlotRecordBytes = 64;
inline constexpr size_t kTierValueHeaderBytes = 64;
inline constexpr uint64_t kMaxTierObjectBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxSegmentSlots = 4096;

// What a segment file is cut into. Sizes in bytes.
struct SegmentShape {
  uint64_t id = 0;
  uint64_t slot_bytes = 0;          // a multiple of a page
  uint64_t n_slots = 0;             // 1 to kMaxSegmentSlots
  TierUse use = TierUse::kContext;  // of all its blocks

  uint64_t record_at(uint64_t slot) const { return kTierPageBytes + slot * kSlotRecordBytes; }
  uint64_t slot_at(uint64_t slot) const { return slots_begin() + slot * slot_bytes; }
  uint64_t slots_begin() const;
  uint64_t file_bytes() const { return slot_at(n_slots); }
};
uint64_t round_to_page(uint64_t bytes);

std::array<std::byte, kSegmentHeaderBytes> encode_segment_header(const SegmentShape& shape);
// Errors: foreign magic, other version, a wrong CRC (kBadFile, kUnsupported), a file that is not as long as it says.
Result<SegmentShape> parse_segment_header(std::span<const std::byte> bytes, uint64_t file_bytes);

struct SlotRecord {
  TierObject object;
  uint64_t bytes = 0;
  uint32_t crc = 0;
};
enum class SlotState : uint8_t {
  kFree,   // never used, or erased before the store was opened
  kWhole,  // the record describes an object
  kBad,    // quarantined: what it held was not what was put; or an unreadable record
};
struct ParsedSlot {
  SlotState state = SlotState::kFree;
  SlotRecord record;  // kWhole
};
std::array<std::byte, kSlotRecordBytes> encode_slot_record(const SegmentShape& shape, uint64_t slot,
                                                           const SlotRecord& record, SlotState state);
// `bytes`: kSlotRecordBytes of them. Whatever is not a record of this slot of this segment is kBad.
ParsedSlot parse_slot_record(const SegmentShape& shape, uint64_t slot, std::span<const std::byte> bytes);

std::array<std::byte, kTierValueHeaderBytes> encode_tier_value_header(const SlotRecord& record);
// The block bytes of a value, if it is the whole object of payload_bytes that was asked for and its CRC is right. Else kRefused for a
// value that is not ours, or kCorrupt for ours with a flipped bit.
std::variant<std::span<const std::byte>, TierFault> parse_tier_value(std::span<const std::byte> value,
                                                                     const TierObject& object, size_t payload_bytes);

}  // namespace pagoda::kv
