#include "kv/session_part.h"

#include <algorithm>
#include <utility>

#include "kv/byte_text.h"
#include "kv/session_name.h"
#include "kv/session_record.h"

namespace pagoda::kv {
namespace {

constexpr std::string_view kMagic = "PGDAPART";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeadBytes = 64, kMacBytes = 32, kCrcBytes = 4;

Sha256 mac_of(std::span<const std::byte> bytes, std::span<const std::byte> secret) {
  return hmac_sha256(secret, bytes);
}

tl::unexpected<Error> bad(std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, "the body is no part of an exported session, or damaged: {}", what);
}

Result<std::vector<SessionPart::Block>> parse_blocks(ByteReader& in, uint32_t n_blocks, size_t n_whole) {
  std::vector<SessionPart::Block> blocks;
  for (uint32_t i = 0; i < n_blocks; ++i) {
    SessionPart::Block block{.block = in.number<uint32_t>(), .group = GroupId(in.number<uint32_t>()), .bytes = {}};
    const auto n_bytes = in.number<uint64_t>();
    if (!in.is_good() || n_bytes == 0 || n_bytes > in.left()) return bad("a block's head");
    if (block.block >= n_whole) return bad("a block behind the tokens");
    if (!blocks.empty() && std::pair(blocks.back().block, blocks.back().group) >= std::pair(block.block, block.group))
      return bad("blocks out of order");
    const std::span<const std::byte> bytes = in.bytes(n_bytes);
    block.bytes.assign(bytes.begin(), bytes.end());
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace

size_t part_overhead_bytes(size_t n_name, size_t n_tokens, size_t n_blocks) {
  return kHeadBytes + n_name + 4 + n_tokens * 4 + n_blocks * 16 + kMacBytes + kCrcBytes;
}

std::vector<std::byte> encode_part(const SessionPart& part, std::span<const std::byte> secret) {
  size_t n_bytes = part_overhead_bytes(part.name.size(), part.token_ids.size(), part.blocks.size());
  for (const SessionPart::Block& block : part.blocks) n_bytes += block.bytes.size();
  std::vector<std::byte> bytes;
  bytes.reserve(n_bytes);
  ByteWriter out(bytes);
  out.text(kMagic);
  for (const size_t number : {size_t{kVersion}, size_t{part.part}, size_t{part.n_parts}, part.name.size(),
                              part.token_ids.size(), part.blocks.size()}) {
    out.number(static_cast<uint32_t>(number));
  }
  out.bytes(part.root.bytes);
  out.text(part.name);
  out.pad_to(4);
  for (const TokenId token : part.token_ids) out.number(token.value);
  for (const SessionPart::Block& block : part.blocks) {
    out.number(block.block);
    out.number(block.group.value);
    out.number(static_cast<uint64_t>(block.bytes.size()));
    out.bytes(block.bytes);
  }
  const Sha256 mac = mac_of(bytes, secret);
  out.bytes(mac);
  out.number(crc32c(bytes));
  return bytes;
}

Result<SessionPart> parse_part(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeadBytes + kMacBytes + kCrcBytes || ByteReader(bytes).text(kMagic.size()) != kMagic)
    return bad("its head");
  const std::span<const std::byte> checked = bytes.first(bytes.size() - kCrcBytes);
  ByteReader in(checked.first(checked.size() - kMacBytes));
  in.bytes(kMagic.size());
  if (in.number<uint32_t>() != kVersion)
    return fail(ErrorCode::kUnsupported, "the body is a part of an exported session in another version's format");
  if (ByteReader(bytes.last(kCrcBytes)).number<uint32_t>() != crc32c(checked)) return bad("its checksum");
  SessionPart part;
  part.part = in.number<uint32_t>();
  part.n_parts = in.number<uint32_t>();
  const auto n_name = in.number<uint32_t>();
  const auto n_tokens = in.number<uint32_t>();
  const auto n_blocks = in.number<uint32_t>();
  std::ranges::copy(in.bytes(sizeof(part.root.bytes)), part.root.bytes.begin());
  part.name = in.text(n_name);
  in.skip_to(4);
  if (!in.is_good() || !is_session_name(part.name) || part.part >= part.n_parts) return bad("its name");
  if (n_tokens > kMaxSessionTokens || in.left() / 4 < n_tokens) return bad("its tokens");
  part.token_ids.resize(n_tokens);
  for (TokenId& token : part.token_ids) {
    token = TokenId(in.number<int32_t>());
    if (token.value < 0) return bad("a token");
  }
  TRY_ASSIGN(part.blocks, parse_blocks(in, n_blocks, n_tokens / kBlockTokens));
  if (in.left() != 0) return bad("its length");
  return part;
}

bool is_signed_with(std::span<const std::byte> bytes, std::span<const std::byte> secret) {
  const std::span<const std::byte> checked = bytes.first(bytes.size() - kCrcBytes);
  const Sha256 mac = mac_of(checked.first(checked.size() - kMacBytes), secret);
  unsigned difference = 0;  // in constant time
  for (size_t i = 0; i < kMacBytes; ++i)
    difference |= std::to_integer<unsigned>(mac[i] ^ checked[checked.size() - kMacBytes + i]);
  return difference == 0;
}

}  // namespace pagoda::kv
