#include "engine/block_store.h"

#include <algorithm>
#include <cstring>

#include "base/digest.h"

namespace pagoda::engine {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kTouchBytes = size_t{2} << 20;

}  // namespace

Result<BlockStore> BlockStore::make(size_t n_extents, size_t extent_bytes,
                                    std::vector<std::vector<size_t>> block_bytes) {
  BlockStore store;
  TRY_ASSIGN(store.arena_, tensor::AlignedBuffer::allocate(n_extents * extent_bytes));
  store.extent_bytes_ = extent_bytes;
  store.block_bytes_ = std::move(block_bytes);
  return store;
}

bool BlockStore::touch_ahead(size_t n_used) {
  const size_t used = n_used * extent_bytes_;
  const size_t ready = std::min(arena_.size(), used + std::min(kReadyBytes, arena_.size() / kReadyPart));
  touched_bytes_ = std::max(touched_bytes_, used);
  if (touched_bytes_ >= ready) return false;
  const size_t end = std::min(touched_bytes_ + kTouchBytes, ready);
  for (; touched_bytes_ < end; touched_bytes_ += kPageBytes) arena_.data()[touched_bytes_] = std::byte{0};
  touched_bytes_ = end;
  return touched_bytes_ < ready;
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
