// AlignedBuffer: zeroed anonymous memory, at least 64-byte aligned; from 2 MiB up it starts on a 2 MiB boundary and
// asks for huge pages. Move-only.
// Units: bytes.     Owns: its pages, which go back to the system when it is destroyed.
// Threads: as the bytes themselves.     Errors: kResourceExhausted if the system refuses.
// Cost: a few system calls; a page becomes resident when it is first touched.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/error.h"

namespace pagoda::tensor {

class AlignedBuffer {
 public:
  // An empty buffer (0 bytes) is allowed and has no address.
  static Result<AlignedBuffer> allocate(size_t bytes);

  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // The whole buffer as elements of a trivial type; a rest smaller than one element is left out.
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }

 private:
  AlignedBuffer(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pagoda::tensor
