// SessionPart: a piece of an exported session: which tokens, whose blocks, and the bytes of some of them. Little-endian:
//
//   0 "PGDAPART"  8 u32 version 1  12 u32 part  16 u32 parts  20 u32 name bytes  24 u32 tokens  28 u32 blocks  32 root[32]
//   64 name, padded to 4  tokens x u32  blocks x { u32 block, u32 group, u64 bytes, the bytes }  MAC[32]  u32 CRC32C of all before
//
// `root` names model, arithmetic, layout, formats and namespace, as in the tiers: with the tokens it fixes every byte of every block, so a
// part for another root is of no use. Who makes blocks up would change other requests' answers: HMAC-SHA256 over all before it, with the
// servers' secret, says that a server made them.
// The parser takes any bytes and never reads past the end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/token_id.h"
#include "kv/tier.h"

namespace pagoda::kv {

struct SessionPart {
  struct Block {
    uint32_t block = 0;  // by position
    GroupId group;
    std::vector<std::byte> bytes;
  };
  TierKey root;
  std::string name;  // as exported
  uint32_t part = 0;
  uint32_t n_parts = 1;
  std::vector<TokenId> token_ids;  // of the whole session
  std::vector<Block> blocks;       // by position, then group; no two the same
};

// As encode_part() makes them, beside the bytes of the blocks.
size_t part_overhead_bytes(size_t n_name, size_t n_tokens, size_t n_blocks);
std::vector<std::byte> encode_part(const SessionPart& part, std::span<const std::byte> secret);
// Errors: kInvalidArgument (damaged, or nothing of the kind), kUnsupported (another version).
Result<SessionPart> parse_part(std::span<const std::byte> bytes);
// Requires that it parses.
bool is_signed_with(std::span<const std::byte> bytes, std::span<const std::byte> secret);

}  // namespace pagoda::kv
