#include "engine/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

namespace pagoda::engine {
namespace {

tl::unexpected<Error> io_error(const char* what, const std::filesystem::path& path) {
  return fail(ErrorCode::kIo, "cannot {} {}: {}", what, path.string(), std::strerror(errno));
}

// kNotFound if it is not there.
Result<Secret> read_secret(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return fail(ErrorCode::kNotFound, "{} is not there", path.string());
  if (fd < 0) return io_error("open", path);
  std::array<std::byte, sizeof(Secret) + 1> bytes;
  const ssize_t n = ::read(fd, bytes.data(), bytes.size());
  ::close(fd);
  if (n < 0) return io_error("read", path);
  if (n != static_cast<ssize_t>(sizeof(Secret))) {
    return fail(ErrorCode::kBadFile, "{} is not a secret: it must be {} bytes", path.string(), sizeof(Secret));
  }
  Secret secret;
  std::memcpy(secret.data(), bytes.data(), secret.size());
  return secret;
}

}  // namespace

Secret random_secret() {
  Secret secret;
  std::random_device entropy;
  for (std::byte& byte : secret) byte = static_cast<std::byte>(entropy());
  return secret;
}

// Written beside it and linked into place: nobody sees half of one, and whoever is first wins.
Result<Secret> load_secret(const std::filesystem::path& path) {
  Result<Secret> known = read_secret(path);
  if (known || known.error().code != ErrorCode::kNotFound) return known;
  std::string part = path.string() + ".XXXXXX";
  const int fd = ::mkostemp(part.data(), O_CLOEXEC);  // 0600
  if (fd < 0) return io_error("make", part);
  const Secret secret = random_secret();
  const bool is_written =
      ::write(fd, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) && ::fsync(fd) == 0;
  ::close(fd);
  Status status;
  if (!is_written) status = io_error("write", part);
  if (status && ::link(part.c_str(), path.c_str()) != 0 && errno != EEXIST) status = io_error("make", path);
  ::unlink(part.c_str());
  TRY(status);
  return read_secret(path);
}

}  // namespace pagoda::engine
