// SessionTransfer: sessions out of this server and into another, in parts of some megabytes (session_part.h).
//
//   export    the blocks of a part, from RAM; those in a tier are loaded first. Blocks that nobody has any more are left out, and all behind
//   import    blocks become nodes of the prefix index like loaded ones, and go to the tiers; then the session holds them
//
// Units: as named.   Owns: nothing.   Threads: engine thread only, between steps.
// Errors: kNotFound (session, part), kInvalidArgument (damaged), kConflict (foreign root or secret, parts out of order, other tokens),
// kResourceExhausted (no room for the blocks).   Cost: a copy, a CRC and a MAC of the part's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "kv/block_io.h"
#include "kv/cache.h"
#include "kv/session_part.h"
#include "kv/sessions.h"

namespace pagoda::kv {

class SessionTransfer {
 public:
  static constexpr size_t kPartBytes = size_t{4} << 20;  // about: whole blocks, and at least one
  // Of a part with all that is around the blocks, for a model with such blocks (by group) and sessions of so many tokens.
  static size_t most_part_bytes(std::span<const size_t> block_bytes, size_t n_tokens);

  struct Memory {
    BlockPool& pool;
    PrefixIndex& index;
    BlockIo& arena;
    Sessions& sessions;
    Tiering* tiering = nullptr;
  };
  // All outlives it. `secret` signs.
  SessionTransfer(const Memory& memory, std::span<const std::byte> secret, size_t part_bytes = kPartBytes)
      : memory_(memory), secret_(secret), part_bytes_(part_bytes) {}

  struct Exported {
    std::vector<std::byte> bytes;
    uint32_t n_parts = 1;
  };
  using Export = std::variant<Exported, WaitOn>;
  // `identity`: the model's (Tiering::set_identity). With kNever what is not in RAM is left out.
  Result<Export> export_part(const SessionKey& key, uint32_t part, const Sha256& identity, Patience patience);
  Status import_part(const SessionKey& key, ModelId model, std::span<const std::byte> bytes, const Sha256& identity);

 private:
  size_t blocks_of_part(const SessionModel& model) const;
  // Into path_: the nodes that RAM has of the tokens' blocks.
  void find_path(const SessionKey& key, const SessionModel& model, std::span<const TokenId> tokens);
  std::optional<WaitOn> load(const SessionKey& key, const Sessions::Path& path, size_t n_resident);
  struct Range {
    size_t begin = 0, end = 0;  // of part.blocks
  };
  NodeId add_block(const SessionModel& model, NodeId parent, BlockTokens tokens, const SessionPart& part, Range range);
  Status copy_in(const SessionModel& model, const SessionPart& part);
  void store(const SessionKey& key, const SessionModel& model, const SessionPart& part);
  Status check_blocks(const SessionModel& model, const SessionPart& part) const;
  Status add_blocks(const SessionKey& key, const SessionModel& model, const SessionPart& part);

  Memory memory_;
  std::span<const std::byte> secret_;
  size_t part_bytes_;
  std::vector<NodeId> path_;     // scratch
  std::vector<BlockId> copies_;  // scratch: by part.blocks, kNoBlock once a node has it
};

}  // namespace pagoda::kv
