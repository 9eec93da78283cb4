#include "tensor/arena.h"

namespace pagoda::tensor {
namespace {

constexpr size_t kBufferBytes = size_t{32} << 20;  // pages that are never touched cost nothing
constexpr size_t kAlignment = 64;

}  // namespace

Result<std::span<std::byte>> Arena::take(size_t bytes) {
  if (bytes == 0) return std::span<std::byte>();
  taken_ += bytes;
  if (bytes >= kBufferBytes / 2) {  // one of its own, so that the buffer being filled is filled on
    TRY_ASSIGN(AlignedBuffer own, AlignedBuffer::allocate(bytes));
    return buffers_.emplace_back(std::move(own)).bytes();
  }
  if (rest_.size() < bytes) {
    TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(kBufferBytes));
    rest_ = buffers_.emplace_back(std::move(buffer)).bytes();
  }
  const std::span<std::byte> part = rest_.first(bytes);
  rest_ = rest_.subspan((bytes + kAlignment - 1) / kAlignment * kAlignment);
  return part;
}

}  // namespace pagoda::tensor
