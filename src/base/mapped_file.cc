#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace pagoda {
namespace {
constexpr size_t kPageBytes = 4096;
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const auto io = [&](const char* what) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
    return fail(Error{code, fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(errno)), {}});
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io("open");
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    ::close(fd);
    return fail(ErrorCode::kBadFile, "{} is {}", path.string(), S_ISREG(info.st_mode) ? "empty" : "not a regular file");
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int saved = errno;
  ::close(fd);
  errno = saved;
  if (data == MAP_FAILED) return io("map");
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(size_t begin, size_t end) const {
  begin = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  end = end == size_ ? size_ : end / kPageBytes * kPageBytes;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace pagoda
