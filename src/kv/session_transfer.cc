#include "kv/session_transfer.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"

namespace pagoda::kv {
namespace {

BlockTokens block_tokens(std::span<const TokenId> tokens, size_t block) {
  return tokens.subspan(block * kBlockTokens).first<kBlockTokens>();
}

// `bytes`: of a block in every group.
size_t blocks_within(size_t part_bytes, size_t bytes) { return std::max<size_t>(1, part_bytes / bytes); }

}  // namespace

size_t SessionTransfer::most_part_bytes(std::span<const size_t> block_bytes, size_t n_tokens) {
  const size_t bytes = std::accumulate(block_bytes.begin(), block_bytes.end(), size_t{0});
  const size_t n_blocks = blocks_within(kPartBytes, bytes);
  return n_blocks * bytes + part_overhead_bytes(kMaxSessionName, n_tokens, n_blocks * block_bytes.size());
}

size_t SessionTransfer::blocks_of_part(const SessionModel& model) const {
  size_t bytes = 0;
  for (const PrefixOwner::Group& group : model.groups) bytes += memory_.pool.block_bytes(group.size_class);
  return blocks_within(part_bytes_, bytes);
}

void SessionTransfer::find_path(const SessionKey& key, const SessionModel& model, std::span<const TokenId> tokens) {
  path_.clear();
  memory_.index.find_path(memory_.index.find_root(model.owner, model.fingerprint, key.cache_namespace), tokens, path_);
}

Result<SessionTransfer::Export> SessionTransfer::export_part(const SessionKey& key, uint32_t part,
                                                             const Sha256& identity, Patience patience) {
  TRY_ASSIGN(const Sessions::Path path, memory_.sessions.path(key));
  const SessionModel& model = memory_.sessions.model(path.model);
  const size_t n_blocks = path.token_ids->size() / kBlockTokens, per_part = blocks_of_part(model);
  const size_t n_parts = std::max<size_t>(1, (n_blocks + per_part - 1) / per_part);
  if (part >= n_parts) {
    return fail(Error{ErrorCode::kNotFound,
                      fmt::format("there is no part {}: session {} has {}", part, key.name, n_parts), "part"});
  }
  const size_t first = part * per_part, end = std::min(n_blocks, first + per_part);
  find_path(key, model, *path.token_ids);
  if (path_.size() < end && patience == Patience::kMayWait) {
    if (const std::optional<WaitOn> wait = load(key, path, path_.size())) return *wait;
    find_path(key, model, *path.token_ids);
  }
  SessionPart made{.root = tier_root(identity, key.cache_namespace),
                   .name = key.name,
                   .part = part,
                   .n_parts = static_cast<uint32_t>(n_parts),
                   .token_ids = *path.token_ids,
                   .blocks = {}};
  for (size_t b = first; b < std::min(end, path_.size()); ++b) {
    for (uint32_t g = 0; g < model.groups.size(); ++g) {
      const BlockId block = memory_.index.block(path_[b], GroupId(g));
      const bool is_wanted = model.groups[g].window_tokens == 0 || memory_.index.is_replay(path_[b], GroupId(g));
      if (block.is_none() || !is_wanted) continue;
      made.blocks.push_back({static_cast<uint32_t>(b), GroupId(g), {}});
      std::vector<std::byte>& bytes = made.blocks.back().bytes;
      bytes.resize(memory_.pool.block_bytes(model.groups[g].size_class));
      memory_.arena.copy_out(path.model, GroupId(g), block, bytes);
    }
  }
  return Exported{encode_part(made, secret_), made.n_parts};
}

// Behind the blocks that RAM has; nothing if no tier has more, or not in time.
std::optional<WaitOn> SessionTransfer::load(const SessionKey& key, const Sessions::Path& path, size_t n_resident) {
  if (memory_.tiering == nullptr || !memory_.tiering->is_ready(path.model)) return std::nullopt;
  const SessionModel& model = memory_.sessions.model(path.model);
  std::vector<TokenId> tokens = *path.token_ids;
  std::vector<TierKey> keys{memory_.tiering->root_key(path.model, key.cache_namespace)};
  for (size_t b = 0; b < n_resident; ++b) keys.push_back(tier_key(keys.back(), block_tokens(tokens, b)));
  tokens.resize(tokens.size() / kBlockTokens * kBlockTokens + 1);  // a load leaves one to compute
  const NodeId root = memory_.index.open_root(model.owner, model.fingerprint, key.cache_namespace);
  const LoadAnswer answer = memory_.tiering->load({.model = path.model,
                                                   .cache_namespace = key.cache_namespace,
                                                   .token_ids = tokens,
                                                   .keys = keys,
                                                   .at = n_resident > 0 ? path_[n_resident - 1] : root,
                                                   .worth = TierWorth::kAlways});
  memory_.index.unpin(root);
  if (!answer.ticket) return std::nullopt;
  return WaitOn{*answer.ticket, answer.deadline_us, WaitOn::For::kLoad};
}

Status SessionTransfer::import_part(const SessionKey& key, ModelId model_id, std::span<const std::byte> bytes,
                                    const Sha256& identity) {
  TRY_ASSIGN(SessionPart part, parse_part(bytes));
  if (part.root != tier_root(identity, key.cache_namespace)) {
    return fail(
        ErrorCode::kConflict,
        "the session was exported for another model file, arithmetic, KV format or cache_salt than this server's");
  }
  if (!is_signed_with(bytes, secret_)) {
    return fail(
        ErrorCode::kConflict,
        "the session was exported by a server with another secret: servers that exchange sessions share --kv-secret");
  }
  const SessionModel& model = memory_.sessions.model(model_id);
  TRY(check_blocks(model, part));
  TRY(memory_.sessions.can_put(key, model_id, part.token_ids));
  TRY(add_blocks(key, model, part));
  return memory_.sessions.put(key, model_id, std::make_shared<const std::vector<TokenId>>(std::move(part.token_ids)));
}

Status SessionTransfer::check_blocks(const SessionModel& model, const SessionPart& part) const {
  for (const SessionPart::Block& block : part.blocks) {
    if (block.group.value < model.groups.size() &&
        block.bytes.size() == memory_.pool.block_bytes(model.groups[block.group.value].size_class)) {
      continue;
    }
    return fail(ErrorCode::kInvalidArgument, "a block of group {} with {} bytes is none of this model's",
                block.group.value, block.bytes.size());
  }
  return {};
}

// Room for all of them first: nothing is evicted while the path is walked. Copies that nobody needs are free again.
Status SessionTransfer::add_blocks(const SessionKey& key, const SessionModel& model, const SessionPart& part) {
  if (part.blocks.empty()) return {};
  TRY(copy_in(model, part));
  PrefixIndex& index = memory_.index;
  NodeId at = index.open_root(model.owner, model.fingerprint, key.cache_namespace);
  const auto step_to = [&](NodeId child) {
    index.pin(child);
    index.unpin(at);
    at = child;
  };
  Status status;
  size_t next = part.blocks.front().block;
  for (size_t b = 0; b < next && status; ++b) {
    const NodeId child = index.trie().find(at, block_tokens(part.token_ids, b));
    if (child != kNoNode) {
      step_to(child);
    } else {
      status = fail(ErrorCode::kConflict,
                    "block {} of the session is not here: import its parts in order, and with room for all of them", b);
    }
  }
  for (size_t i = 0; i < part.blocks.size() && status; ++next) {
    const size_t begin = i;
    while (i < part.blocks.size() && part.blocks[i].block == next) ++i;
    const NodeId child = add_block(model, at, block_tokens(part.token_ids, next), part, {begin, i});
    if (child != kNoNode) {
      index.unpin(at);
      at = child;
    } else {
      status = fail(ErrorCode::kInvalidArgument, "block {} of the session is not whole", next);
    }
  }
  index.unpin(at);
  for (const BlockId block : copies_) {
    if (!block.is_none()) memory_.pool.unref(block);
  }
  if (status) store(key, model, part);
  return status;
}

// Copies of the part's blocks, sealed, one reference each.
Status SessionTransfer::copy_in(const SessionModel& model, const SessionPart& part) {
  std::vector<BlockNeed> needs;
  for (const PrefixOwner::Group& group : model.groups) needs.push_back({group.size_class, 0});
  for (const SessionPart::Block& block : part.blocks) ++needs[block.group.value].n_blocks;
  if (!memory_.index.make_room(needs)) {
    return fail(ErrorCode::kResourceExhausted, "running requests take the KV memory that {} blocks need: try again",
                part.blocks.size());
  }
  copies_.clear();
  for (const SessionPart::Block& block : part.blocks) {
    const std::optional<BlockId> made = memory_.pool.allocate(model.groups[block.group.value].size_class);
    CHECK(made);  // make_room() said so
    memory_.arena.copy_in(model.model, block.group, *made, block.bytes);
    memory_.pool.seal(*made);
    copies_.push_back(*made);
  }
  return {};
}

// The node of the part's blocks [range), pinned: found, or made of them; kNoNode where there is none and a full group's block lacks.
NodeId SessionTransfer::add_block(const SessionModel& model, NodeId parent, BlockTokens tokens, const SessionPart& part,
                                  Range range) {
  PrefixIndex& index = memory_.index;
  std::array<BlockId, kMaxGroups> made{kNoBlock, kNoBlock, kNoBlock, kNoBlock};
  for (size_t i = range.begin; i < range.end; ++i) made[part.blocks[i].group.value] = copies_[i];
  NodeId node = index.trie().find(parent, tokens);
  if (node == kNoNode) {
    for (uint32_t g = 0; g < model.groups.size(); ++g) {
      if (model.groups[g].window_tokens == 0 && made[g].is_none()) return kNoNode;
    }
    node = index.add(index.trie().key_of(parent, tokens), parent, tokens, std::span(made).first(model.groups.size()));
  } else {
    for (uint32_t g = 0; g < model.groups.size(); ++g) {
      if (made[g].is_none()) continue;
      if (index.block(node, GroupId(g)).is_none()) {
        index.attach(node, GroupId(g), made[g]);
      } else {
        made[g] = kNoBlock;
      }
    }
  }
  index.pin(node);
  for (size_t i = range.begin; i < range.end; ++i) {
    const GroupId group = part.blocks[i].group;
    if (made[group.value].is_none()) continue;
    if (model.groups[group.value].window_tokens > 0) index.mark_replay(node, group);
    index.drop(node, group);
    copies_[i] = kNoBlock;
  }
  return node;
}

void SessionTransfer::store(const SessionKey& key, const SessionModel& model, const SessionPart& part) {
  if (memory_.tiering == nullptr || !memory_.tiering->is_ready(model.model)) return;
  find_path(key, model, part.token_ids);
  TierKey at = memory_.tiering->root_key(model.model, key.cache_namespace);
  size_t n_keyed = 0;
  for (const SessionPart::Block& block : part.blocks) {
    if (block.block >= path_.size()) return;
    for (; n_keyed <= block.block; ++n_keyed) at = tier_key(at, block_tokens(part.token_ids, n_keyed));
    const BlockId id = memory_.index.block(path_[block.block], block.group);  // windows beyond their share went at once
    if (!id.is_none()) memory_.tiering->store(model.model, {at, block.group}, id);
  }
}

}  // namespace pagoda::kv
