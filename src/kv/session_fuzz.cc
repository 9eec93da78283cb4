// What sessions are read from takes any bytes: a session's file, a part of an exported one. What parses is consistent, and written again it
// parses to the same. Input: one byte of choice, then the bytes; half of the choices put the right checksum behind them.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "kv/byte_text.h"
#include "kv/session_name.h"
#include "kv/session_part.h"
#include "kv/session_record.h"

namespace {

using namespace pagoda::kv;
using Bytes = std::span<const std::byte>;

void read_record(Bytes bytes) {
  const auto record = parse_session(bytes, 1'000'000);
  if (!record) return;
  CHECK(is_session_name(record->key.name) && record->left_us <= record->ttl_us);
  CHECK(std::ranges::all_of(*record->token_ids, [](pagoda::TokenId token) { return token.value >= 0; }));
  SessionRecord again = *record;
  again.left_us = std::max<int64_t>(0, again.left_us);
  const auto read = parse_session(encode_session(again, 1'000'000), 1'000'000);
  CHECK(read && read->key == again.key && *read->token_ids == *again.token_ids && read->left_us == again.left_us);
}

void read_part(Bytes bytes) {
  const auto part = parse_part(bytes);
  if (!part) return;
  const std::vector<std::byte> secret(32);
  CHECK(part->part < part->n_parts && is_session_name(part->name));
  for (const SessionPart::Block& block : part->blocks) CHECK(block.block < part->token_ids.size() / kBlockTokens);
  is_signed_with(bytes, secret);
  const std::vector<std::byte> again = encode_part(*part, secret);
  CHECK(again.size() == bytes.size() && is_signed_with(again, secret) && parse_part(again));
}

std::vector<std::byte> with_checksum(Bytes bytes) {
  std::vector<std::byte> out(bytes.begin(), bytes.end());
  ByteWriter(out).number(pagoda::crc32c(bytes));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  const std::vector<std::byte> checked = with_checksum(bytes);
  const Bytes input = data[0] % 4 < 2 ? bytes : Bytes(checked);
  data[0] % 2 == 0 ? read_record(input) : read_part(input);
  return 0;
}
