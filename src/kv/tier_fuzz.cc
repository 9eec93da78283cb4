// What tiers read from disks, servers and users takes any bytes: a segment header with its record table, a slot record, a Redis value,
// a Redis URL. What parses is consistent; a record and a value written again are the same bytes. Input: one byte of choice, then the bytes.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "kv/tier_format.h"
#include "kv/tier_redis_url.h"

namespace {

using namespace pagoda::kv;
using Bytes = std::span<const std::byte>;

// As TierDir reads it: the header, then every record of the table that the file has.
void read_segment(Bytes file) {
  const auto shape = parse_segment_header(file.first(std::min(file.size(), kSegmentHeaderBytes)), file.size());
  if (!shape) return;
  CHECK(shape->file_bytes() == file.size());
  for (uint64_t slot = 0; slot < shape->n_slots; ++slot) {
    const ParsedSlot parsed = parse_slot_record(*shape, slot, file.subspan(shape->record_at(slot), kSlotRecordBytes));
    if (parsed.state != SlotState::kWhole) continue;
    CHECK(parsed.record.bytes <= shape->slot_bytes && shape->slot_at(slot) + parsed.record.bytes <= file.size());
  }
}

// A header alone, of a file as long as it says: fuzzers need not guess 8 KiB of zeros.
void read_header(Bytes bytes) {
  for (const uint64_t file_bytes : {uint64_t{0}, uint64_t{16384}, ~uint64_t{0}}) {
    if (const auto shape = parse_segment_header(bytes, file_bytes)) CHECK(shape->file_bytes() == file_bytes);
  }
}

void read_record(Bytes bytes) {
  if (bytes.size() < kSlotRecordBytes) return;
  const SegmentShape shape{.id = 1, .slot_bytes = 8192, .n_slots = 4};
  const ParsedSlot parsed = parse_slot_record(shape, 2, bytes.first(kSlotRecordBytes));
  if (parsed.state != SlotState::kWhole) return;
  CHECK(parsed.record.bytes > 0 && parsed.record.bytes <= shape.slot_bytes);
  CHECK(std::ranges::equal(encode_slot_record(shape, 2, parsed.record, SlotState::kWhole),
                           bytes.first(kSlotRecordBytes)));
}

void read_value(Bytes bytes) {
  TierObject object;
  if (bytes.size() >= kTierValueHeaderBytes) {  // the object it claims to be: more values get as far as their CRC
    std::ranges::copy(bytes.subspan(16, 32), object.key.bytes.begin());
    for (size_t i = 0; i < 4; ++i) object.group.value |= std::to_integer<uint32_t>(bytes[12 + i]) << (8 * i);
  }
  const size_t n_bytes = bytes.size() < kTierValueHeaderBytes ? 0 : bytes.size() - kTierValueHeaderBytes;
  const auto parsed = parse_tier_value(bytes, object, n_bytes);
  const auto* payload = std::get_if<Bytes>(&parsed);
  if (payload == nullptr) return;
  CHECK(payload->size() == n_bytes);
  const auto header = encode_tier_value_header({.object = object, .bytes = n_bytes, .crc = pagoda::crc32c(*payload)});
  CHECK(std::ranges::equal(header, bytes.first(kTierValueHeaderBytes)));
}

void read_url(Bytes bytes) {
  const std::string_view url(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto address = parse_redis_url(url);
  if (!address) return;
  CHECK(!address->host.empty() && address->port != 0);
  CHECK(address->user.empty() || !address->password.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 5) {
    case 0:
      read_segment(bytes);
      break;
    case 1:
      read_header(bytes);
      break;
    case 2:
      read_record(bytes);
      break;
    case 3:
      read_value(bytes);
      break;
    default:
      read_url(bytes);
  }
  return 0;
}
