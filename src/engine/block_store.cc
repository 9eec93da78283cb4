#include "engine/block_store.h"

#include <cstring>

#include "base/digest.h"

namespace pagoda::engine {

Result<BlockStore> BlockStore::make(size_t n_extents, size_t extent_bytes,
                                    std::vector<std::vector<size_t>> block_bytes) {
  BlockStore store;
  TRY_ASSIGN(store.arena_, tensor::AlignedBuffer::allocate(n_extents * extent_bytes));
  store.extent_bytes_ = extent_bytes;
  store.block_bytes_ = std::move(block_bytes);
  return store;
}

void BlockStore::copy_out(kv::ModelId model, kv::GroupId group, kv::BlockId block, std::span<std::byte> to) const {
  CHECK(to.size() == block_bytes(model, group));
  std::memcpy(to.data(), arena_.data() + offset(model, group, block), to.size());
}

void BlockStore::copy_in(kv::ModelId model, kv::GroupId group, kv::BlockId block, std::span<const std::byte> from) {
  CHECK(from.size() == block_bytes(model, group));
  std::memcpy(address(model, group, block), from.data(), from.size());
}

uint32_t BlockStore::checksum(kv::ModelId model, kv::GroupId group, kv::BlockId block) const {
  return crc32c({arena_.data() + offset(model, group, block), block_bytes(model, group)});
}

}  // namespace pagoda::engine
