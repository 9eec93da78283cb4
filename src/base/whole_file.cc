#include "base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace pagoda {
namespace {

// 0, or an errno.
int write_all(const std::string& path, std::span<const std::byte> bytes, mode_t mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) return errno;
  int error = 0;
  while (!bytes.empty() && error == 0) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    if (n <= 0 && errno != EINTR) error = errno;
  }
  ::close(fd);
  return error;
}

}  // namespace

Status write_whole(const std::filesystem::path& path, std::span<const std::byte> bytes, mode_t mode) {
  const std::string made = fmt::format("{}.{}{}", path.string(), ::getpid(), kHalfWritten);
  int error = write_all(made, bytes, mode);
  if (error == 0 && ::rename(made.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(made.c_str());
  return fail(ErrorCode::kIo, "cannot write {}: {}", path.string(), std::strerror(error));
}

}  // namespace pagoda
