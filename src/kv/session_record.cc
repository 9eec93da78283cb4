#include "kv/session_record.h"

#include "kv/byte_text.h"
#include "kv/session_name.h"

namespace pagoda::kv {
namespace {

constexpr std::string_view kMagic = "PGDASESS";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kPinned = 1;
constexpr int64_t kMostTtlUs = int64_t{1} << 56;  // of both times, so that no sum overflows

}  // namespace

std::vector<std::byte> encode_session(const SessionRecord& record, int64_t saved_unix_s) {
  std::vector<std::byte> bytes;
  bytes.reserve(88 + record.key.name.size() + record.token_ids->size() * 4);
  ByteWriter out(bytes);
  out.text(kMagic);
  out.number(kVersion);
  out.number(record.is_pinned ? kPinned : uint32_t{0});
  for (const uint64_t word : record.key.cache_namespace.bits) out.number(word);
  out.number(record.fingerprint.low);
  out.number(record.fingerprint.high);
  out.number(record.ttl_us);
  out.number(record.left_us);
  out.number(saved_unix_s);
  out.number(static_cast<uint32_t>(record.key.name.size()));
  out.number(static_cast<uint32_t>(record.token_ids->size()));
  out.text(record.key.name);
  out.pad_to(4);
  for (const TokenId token : *record.token_ids) out.number(token.value);
  out.number(crc32c(bytes));
  return bytes;
}

Result<SessionRecord> parse_session(std::span<const std::byte> bytes, int64_t now_unix_s) {
  const auto bad = [](std::string_view what) { return fail(ErrorCode::kBadFile, "not a session's file: {}", what); };
  if (bytes.size() < 84 || ByteReader(bytes).text(8) != kMagic) return bad("its head");
  ByteReader in(bytes.first(bytes.size() - 4));
  in.bytes(8);
  if (in.number<uint32_t>() != kVersion) return fail(ErrorCode::kUnsupported, "a session's file of another version");
  if (ByteReader(bytes.last(4)).number<uint32_t>() != crc32c(bytes.first(bytes.size() - 4))) return bad("its checksum");
  SessionRecord record;
  const auto flags = in.number<uint32_t>();
  record.is_pinned = flags == kPinned;
  for (uint64_t& word : record.key.cache_namespace.bits) word = in.number<uint64_t>();
  record.fingerprint.low = in.number<uint64_t>();
  record.fingerprint.high = in.number<uint64_t>();
  record.ttl_us = in.number<int64_t>();
  record.left_us = in.number<int64_t>();
  const auto saved_unix_s = in.number<int64_t>();
  const auto n_name = in.number<uint32_t>();
  const auto n_tokens = in.number<uint32_t>();
  record.key.name = in.text(n_name);
  in.skip_to(4);
  if (!in.is_good() || flags > kPinned || !is_session_name(record.key.name)) return bad("its name");
  if (record.ttl_us <= 0 || record.ttl_us > kMostTtlUs || record.left_us < 0 || record.left_us > record.ttl_us)
    return bad("its times");
  if (n_tokens > kMaxSessionTokens || in.left() != size_t{n_tokens} * 4) return bad("its length");
  std::vector<TokenId> tokens(n_tokens);
  for (TokenId& token : tokens) {
    token = TokenId(in.number<int32_t>());
    if (token.value < 0) return bad("a token");
  }
  record.token_ids = std::make_shared<const std::vector<TokenId>>(std::move(tokens));
  // A clock that went back leaves it what it had.
  const int64_t most_s = kMostTtlUs / 1'000'000;
  const int64_t passed_s = saved_unix_s < 0 || now_unix_s <= saved_unix_s ? 0 : now_unix_s - saved_unix_s;
  record.left_us -= std::min(passed_s, most_s) * 1'000'000;
  return record;
}

}  // namespace pagoda::kv
