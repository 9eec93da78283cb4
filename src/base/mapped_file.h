// MappedFile: a whole file read-only in memory. Move-only; unmaps when destroyed.
// Threads: reads from any; drop() from one at a time.     Errors: missing, not a regular file, empty, mmap refused.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/error.h"

namespace pagoda {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the kernel that [begin, end) was consumed: resident pages wholly inside are let go (they come back on access).
  void drop(size_t begin, size_t end) const;

 private:
  MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pagoda
