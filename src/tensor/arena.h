// Arena: memory for many parts that live as long as it does, side by side in large buffers, so that parts of a few hundred KB
// lie on huge pages too (4 KiB pages cost a fifth or more of what streaming through weights could reach).
// Units: bytes.     Owns: all it gave out.     Threads: take() from one at a time.     Errors: kResourceExhausted.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tensor/aligned_buffer.h"

namespace pagoda::tensor {

class Arena {
 public:
  // Zeroed, 64-byte aligned; valid until the arena is gone, also when it is moved. 0 bytes: an empty span.
  Result<std::span<std::byte>> take(size_t bytes);

  size_t taken_bytes() const { return taken_; }

 private:
  std::vector<AlignedBuffer> buffers_;
  std::span<std::byte> rest_;  // of the buffer that is being filled
  size_t taken_ = 0;
};

}  // namespace pagoda::tensor
