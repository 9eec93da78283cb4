#include "engine/file_digest.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "base/whole_file.h"
#include "kv/byte_text.h"

namespace pagoda::engine {
namespace {

constexpr size_t kPieceBytes = 4 << 20;
constexpr size_t kMostLines = 256;  // remembered

// What the files' bytes are remembered by. Paths are not in it: a file may be reached by several.
std::string name_of(const std::vector<FileStamp>& files) {
  std::vector<std::byte> message;
  kv::ByteWriter out(message);
  for (const FileStamp& file : files) {
    for (const uint64_t value : {file.bytes, file.inode, file.device, static_cast<uint64_t>(file.changed_ns)})
      out.number(value);
  }
  return to_hex(sha256(message));
}

std::optional<Sha256> parse_digest(std::string_view hex) {
  Sha256 digest;
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    uint8_t value = 0;
    const auto [end, error] = std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, value, 16);
    if (error != std::errc() || end != hex.data() + 2 * i + 2) return std::nullopt;
    digest[i] = static_cast<std::byte>(value);
  }
  return digest;
}

// Lines of "name digest", the newest last.
std::vector<std::string> read_lines(const std::filesystem::path& memory) {
  std::vector<std::string> lines;
  std::ifstream in(memory);
  for (std::string line; lines.size() < kMostLines && std::getline(in, line);) {
    if (line.size() == 4 * sizeof(Sha256) + 1) lines.push_back(std::move(line));
  }
  return lines;
}

std::optional<Sha256> recall(const std::filesystem::path& memory, const std::string& name) {
  for (const std::string& line : read_lines(memory)) {
    if (line.starts_with(name + " ")) return parse_digest(std::string_view(line).substr(name.size() + 1));
  }
  return std::nullopt;
}

void remember(const std::filesystem::path& memory, const std::string& name, const Sha256& digest) {
  std::vector<std::string> lines = read_lines(memory);
  if (lines.size() == kMostLines) lines.erase(lines.begin());
  lines.push_back(name + " " + to_hex(digest));
  const std::string text = fmt::format("{}\n", fmt::join(lines, "\n"));
  if (const Status written = write_whole(memory, std::as_bytes(std::span(text)), 0666); !written)
    LOG_DEBUG("the digest of the model's files will be made again: {}", written.error().to_string());
}

}  // namespace

Result<FileStamp> stamp_file(const std::filesystem::path& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    return fail(ErrorCode::kIo, "cannot look at {}: {}", path.string(), std::strerror(errno));
  const auto ns = [](const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; };
  return FileStamp{.path = path,
                   .bytes = static_cast<uint64_t>(info.st_size),
                   .inode = info.st_ino,
                   .device = info.st_dev,
                   .changed_ns = std::max(ns(info.st_mtim), ns(info.st_ctim))};
}

Result<Sha256> digest_files(const std::vector<FileStamp>& files, const std::atomic<bool>& stop) {
  std::vector<std::byte> message, piece(kPieceBytes);
  kv::ByteWriter out(message);
  for (const FileStamp& file : files) {
    out.number(file.bytes);
    std::ifstream in(file.path, std::ios::binary);
    for (uint64_t done = 0; done < file.bytes;) {
      if (stop.load()) return fail(ErrorCode::kCancelled, "stopped");
      const size_t n = std::min<uint64_t>(kPieceBytes, file.bytes - done);
      if (!in.read(reinterpret_cast<char*>(piece.data()), static_cast<std::streamsize>(n))) {
        return fail(ErrorCode::kIo, "cannot read {}", file.path.string());
      }
      out.bytes(sha256(std::span(piece).first(n)));
      done += n;
    }
    TRY_ASSIGN(const FileStamp now, stamp_file(file.path));
    if (now != file) return fail(ErrorCode::kIo, "{} changed since it was loaded", file.path.string());
  }
  return sha256(message);
}

FileDigest::FileDigest(std::vector<FileStamp> files, std::filesystem::path memory, std::function<void()> wake)
    : files_(std::move(files)), memory_(std::move(memory)), wake_(std::move(wake)) {
  if (!memory_.empty()) digest_ = recall(memory_, name_of(files_));
  is_done_.store(digest_.has_value());
  if (!digest_) thread_ = std::thread([this] { run(); });
}

FileDigest::~FileDigest() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

std::optional<Sha256> FileDigest::take() {
  if (!is_done_.load()) return std::nullopt;
  return std::exchange(digest_, std::nullopt);
}

void FileDigest::run() {
  const Result<Sha256> digest = digest_files(files_, stop_);
  if (digest) {
    digest_ = *digest;
    if (!memory_.empty()) remember(memory_, name_of(files_), *digest);
  } else if (digest.error().code != ErrorCode::kCancelled) {
    has_failed_ = true;
    LOG_WARN("no KV block leaves this process, to a tier or with a session: {}", digest.error().to_string());
  }
  is_done_.store(true);
  if (!stop_.load()) wake_();
}

}  // namespace pagoda::engine
