#include "kv/tier_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/digest.h"

namespace pagoda::kv {
namespace {

constexpr std::string_view kPrefix = "kv-", kWholeSuffix = ".seg", kNewSuffix = ".new";
constexpr size_t kIdDigits = 16;

tl::unexpected<Error> io_error(const char* what, const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return fail(is_full ? ErrorCode::kResourceExhausted : ErrorCode::kIo, "cannot {} {}: {}", what, path,
              std::strerror(error));
}

struct SegmentName {
  uint64_t id = 0;
  bool is_new = false;
};
std::optional<SegmentName> parse_name(std::string_view name) {
  const bool is_new = name.ends_with(kNewSuffix);
  if (name.size() != kPrefix.size() + kIdDigits + kWholeSuffix.size() || !name.starts_with(kPrefix))
    return std::nullopt;
  if (!is_new && !name.ends_with(kWholeSuffix)) return std::nullopt;
  SegmentName parsed{.id = 0, .is_new = is_new};
  const char* digits = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(digits, digits + kIdDigits, parsed.id, 16);
  if (error != std::errc() || end != digits + kIdDigits || parsed.id >> 63 != 0) return std::nullopt;
  return parsed;
}

// Reads up to bytes.size() bytes; fewer at the end of the file.
Result<size_t> read_at(int fd, uint64_t offset, std::span<std::byte> bytes, const std::string& path) {
  size_t n_read = 0;
  while (n_read < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + n_read, bytes.size() - n_read, static_cast<off_t>(offset + n_read));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("read", path, errno);
    if (n == 0) break;
    n_read += static_cast<size_t>(n);
  }
  return n_read;
}

struct FoundSegment {
  std::unique_ptr<Segment> segment;
  int64_t used_ns = 0;
  uint64_t bad_slots = 0;
};

// The slots that hold objects, and those that are free; a slot with a record that is not one is neither.
uint64_t read_slots(Segment& segment, std::span<const std::byte> table) {
  uint64_t n_bad = 0;
  segment.records.resize(segment.shape.n_slots);
  for (uint64_t slot = segment.shape.n_slots; slot-- > 0;) {
    const ParsedSlot parsed =
        parse_slot_record(segment.shape, slot, table.subspan(slot * kSlotRecordBytes, kSlotRecordBytes));
    if (parsed.state == SlotState::kFree) segment.free_slots.push_back(static_cast<uint32_t>(slot));
    if (parsed.state == SlotState::kWhole) segment.records[slot] = parsed.record;
    n_bad += parsed.state == SlotState::kBad;
  }
  return n_bad;
}

Result<FoundSegment> open_segment(const std::string& path, uint64_t id) {
  auto segment = std::make_unique<Segment>();
  segment->path = path;
  segment->fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (segment->fd < 0) return io_error("open", path, errno);
  struct stat info{};
  if (::fstat(segment->fd, &info) != 0) return io_error("look at", path, errno);
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kBadFile, "not a regular file");
  std::array<std::byte, kSegmentHeaderBytes> header;
  TRY_ASSIGN(const size_t n_header, read_at(segment->fd, 0, header, path));
  TRY_ASSIGN(segment->shape,
             parse_segment_header(std::span(header).first(n_header), static_cast<uint64_t>(info.st_size)));
  if (segment->shape.id != id) return fail(ErrorCode::kBadFile, "its name is not its own");
  std::vector<std::byte> table(segment->shape.n_slots * kSlotRecordBytes);
  TRY_ASSIGN(const size_t n_table, read_at(segment->fd, segment->shape.record_at(0), table, path));
  if (n_table != table.size()) return fail(ErrorCode::kBadFile, "the record table is cut short");
  const uint64_t n_bad = read_slots(*segment, table);
  return FoundSegment{.segment = std::move(segment),
                      .used_ns = info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec,
                      .bad_slots = n_bad};
}

Status write_header(int fd, const SegmentShape& shape, const std::string& path) {
  const auto header = encode_segment_header(shape);
  ssize_t n;
  do {
    n = ::pwrite(fd, header.data(), header.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return io_error("write", path, errno);
  if (n != static_cast<ssize_t>(header.size())) return io_error("write", path, ENOSPC);
  return {};
}

tl::unexpected<Error> no_folder(const char* what, const std::string& path, int error) {
  return fail(ErrorCode::kIo, "cannot {} {}: {}; name a folder that this process may make, or write into", what, path,
              std::strerror(error));
}

}  // namespace

Result<TierDir> TierDir::open(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return no_folder("make the folder", path, errno);
  const std::string lock_path = path + "/lock";
  const int fd = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return no_folder("write into", path, errno);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(fd);
    if (error != EWOULDBLOCK) return io_error("lock", lock_path, error);
    return fail(ErrorCode::kUnavailable, "{} is in use by another process; give each its own folder", path);
  }
  return TierDir(path, fd);
}

TierDir::TierDir(TierDir&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

TierDir::~TierDir() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

std::string TierDir::segment_path(uint64_t id, const char* suffix) const {
  return path_ + "/" + std::string(kPrefix) + to_hex(id) + suffix;
}

Result<TierDir::Found> TierDir::recover() const {
  Found found;
  std::vector<FoundSegment> segments;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    const std::optional<SegmentName> name = parse_name(entry.path().filename().string());
    std::error_code type_error;
    if (!name || entry.symlink_status(type_error).type() != std::filesystem::file_type::regular) continue;
    const std::string path = entry.path().string();
    found.next_id = std::max(found.next_id, name->id + 1);
    if (name->is_new) {
      TRY(remove(path));
      continue;
    }
    Result<FoundSegment> segment = open_segment(path, name->id);
    if (segment) {
      segments.push_back(std::move(*segment));
      continue;
    }
    std::error_code size_error;
    const uint64_t bytes = entry.file_size(size_error);
    found.quarantined.push_back({.path = path, .bytes = size_error ? 0 : bytes, .why = segment.error().message});
  }
  if (error) return fail(ErrorCode::kIo, "cannot list {}: {}", path_, error.message());
  std::ranges::sort(segments, {}, [](const FoundSegment& s) { return std::pair(s.used_ns, s.segment->shape.id); });
  for (FoundSegment& s : segments) {
    found.quarantined_slots += s.bad_slots;
    found.segments.push_back(std::move(s.segment));
  }
  return found;
}

Result<std::unique_ptr<Segment>> TierDir::create(const SegmentShape& shape, DiskIo& io) const {
  const std::string new_path = segment_path(shape.id, kNewSuffix.data());
  auto segment = std::make_unique<Segment>();
  segment->shape = shape;
  segment->path = segment_path(shape.id, kWholeSuffix.data());
  segment->fd = ::open(new_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (segment->fd < 0) return io_error("make", new_path, errno);
  Status status = {};
  if (const int full = io.allocate(segment->fd, shape.file_bytes()); full != 0) {
    status = io_error("make room for", new_path, full);
  }
  if (status) status = write_header(segment->fd, shape, new_path);
  if (status && ::rename(new_path.c_str(), segment->path.c_str()) != 0) status = io_error("rename", new_path, errno);
  if (!status) {
    (void)remove(new_path);
    return fail(std::move(status).error());
  }
  segment->records.resize(shape.n_slots);
  for (uint64_t slot = shape.n_slots; slot-- > 0;) segment->free_slots.push_back(static_cast<uint32_t>(slot));
  return segment;
}

Status TierDir::remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io_error("delete", path, errno);
  return {};
}

Status TierDir::clear() const {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    if (parse_name(entry.path().filename().string())) paths.push_back(entry.path().string());
  }
  if (error) return fail(ErrorCode::kIo, "cannot list {}: {}", path_, error.message());
  for (const std::string& path : paths) TRY(remove(path));
  return {};
}

}  // namespace pagoda::kv
