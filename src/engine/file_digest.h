// FileDigest: a digest over every byte of a model's files, made on a thread of its own, because keys that leave the process may not trust
// samples. What was found is kept in a small text file by (size, time of change, inode), so that the next start knows it at once.
// Owns: the thread; destroying it ends the work soon.   Threads: all calls from one.   Errors: files that cannot be read, or changed
// since they were looked at first, have no digest: logged.   Cost: one pass over the files, 4 MiB at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "base/error.h"

namespace pagoda::engine {

// Which bytes a path stands for right now.
struct FileStamp {
  std::filesystem::path path;
  uint64_t bytes = 0;
  uint64_t inode = 0;
  uint64_t device = 0;
  int64_t changed_ns = 0;  // modification and inode change: the later one
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
Result<FileStamp> stamp_file(const std::filesystem::path& path);

// SHA-256 over the SHA-256 of each 4 MiB of the files, in order, with their lengths. kCancelled when `stop` becomes true.
Result<Sha256> digest_files(const std::vector<FileStamp>& files, const std::atomic<bool>& stop);

class FileDigest {
 public:
  // `files`: as stamped before they were used. `memory`: the text file; empty: none. `wake`: called by the thread when it is done.
  FileDigest(std::vector<FileStamp> files, std::filesystem::path memory, std::function<void()> wake);
  ~FileDigest();
  FileDigest(const FileDigest&) = delete;
  FileDigest& operator=(const FileDigest&) = delete;

  // Once it is known, and then no more. At once if it was remembered.
  std::optional<Sha256> take();
  // There is none, and will be none.
  bool has_failed() const { return is_done_.load() && has_failed_; }

 private:
  void run();

  const std::vector<FileStamp> files_;
  const std::filesystem::path memory_;
  const std::function<void()> wake_;
  std::optional<Sha256> digest_;  // written before is_done_, as has_failed_
  bool has_failed_ = false;
  std::atomic<bool> is_done_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace pagoda::engine
