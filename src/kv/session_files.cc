#include "kv/session_files.h"

#include <chrono>
#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "kv/byte_text.h"

namespace pagoda::kv {
namespace {

constexpr std::string_view kEnding = ".session";
constexpr mode_t kMode = 0600;
constexpr std::chrono::milliseconds kDelay{1000};
constexpr uint64_t kMostFileBytes = 256 + kMaxSessionTokens * sizeof(TokenId);

// Models that share a folder have sessions of the same names.
std::string name_file(const SessionKey& key, const Hash128& fingerprint) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  for (const uint64_t word : key.cache_namespace.bits) out.number(word);
  for (const uint64_t word : {fingerprint.low, fingerprint.high}) out.number(word);
  out.text(key.name);
  const Sha256 digest = sha256(bytes);
  return to_hex(std::span(digest).first(16)).append(kEnding);
}

Result<std::vector<std::byte>> read_file(const std::filesystem::path& path) {
  std::error_code error;
  const uint64_t n_bytes = std::filesystem::file_size(path, error);
  if (error || n_bytes > kMostFileBytes) return fail(ErrorCode::kBadFile, "{} is no session's file", path.string());
  std::vector<std::byte> bytes(n_bytes);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(n_bytes)))
    return fail(ErrorCode::kIo, "cannot read {}", path.string());
  return bytes;
}

}  // namespace

Result<std::unique_ptr<SessionFiles>> SessionFiles::open(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::create_directory(folder, error)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  }
  if (error || !std::filesystem::is_directory(folder)) {
    return fail(ErrorCode::kIo, "cannot make the folder {} for sessions: {}", folder.string(), error.message());
  }
  return std::unique_ptr<SessionFiles>(new SessionFiles(folder));
}

SessionFiles::~SessionFiles() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::vector<SessionRecord> SessionFiles::load() const {
  std::vector<SessionRecord> records;
  std::error_code error;
  const int64_t now_unix_s = unix_seconds();
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    std::error_code gone;
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kHalfWritten) && name.find(kEnding) != std::string::npos)
      std::filesystem::remove(entry.path(), gone);
    if (!name.ends_with(kEnding)) continue;
    const Result<std::vector<std::byte>> bytes = read_file(entry.path());
    Result<SessionRecord> record = bytes ? parse_session(*bytes, now_unix_s) : fail(bytes.error());
    if (!record) {
      LOG_WARN("{}: {}", entry.path().string(), record.error().to_string());
      if (record.error().code == ErrorCode::kBadFile) std::filesystem::remove(entry.path(), gone);
    } else if (record->left_us <= 0 && !record->is_pinned) {
      std::filesystem::remove(entry.path(), gone);
    } else {
      records.push_back(std::move(*record));
    }
  }
  return records;
}

void SessionFiles::save(SessionRecord record) {
  std::string file_name = name_file(record.key, record.fingerprint);
  change(std::move(file_name), std::move(record));
}

void SessionFiles::forget(const SessionKey& key, const Hash128& fingerprint) {
  change(name_file(key, fingerprint), std::nullopt);
}

void SessionFiles::change(std::string file_name, std::optional<SessionRecord> record) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.insert_or_assign(std::move(file_name), std::move(record));
  }
  changed_.notify_one();
}

void SessionFiles::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    changed_.wait_for(lock, kDelay, [this] { return is_stopping_; });  // what changes again meanwhile is written once
    const auto batch = std::exchange(waiting_, {});
    if (batch.empty() && is_stopping_) return;
    lock.unlock();
    for (const auto& [file_name, record] : batch) write(file_name, record);
    lock.lock();
  }
}

void SessionFiles::write(const std::string& file_name, const std::optional<SessionRecord>& record) {
  const std::filesystem::path path = folder_ / file_name;
  if (!record) {
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) LOG_WARN("{}: cannot be deleted ({}): the session comes back", path.string(), error.message());
    return;
  }
  const Status status = write_whole(path, encode_session(*record, unix_seconds()), kMode);
  if (!status && !is_failing_) LOG_WARN("sessions will not all outlive this process: {}", status.error().to_string());
  is_failing_ = !status;
}

}  // namespace pagoda::kv
