// SessionFiles: a keeper that writes each session into a small file of its own (session_record.h), a second after its last change and when
// it is destroyed, so that a turn costs one file however many sessions sleep.
//
//   <32 hex digits of SHA-256 of namespace, name and model>.session      made as .new, then renamed: never half old and half new
//
// Files are 0600, the folder 0700. Nothing is synced, as in the disk tier: what a power cut leaves fails its checksum. A file that cannot
// be read or written is logged and costs that session's record, nothing else.
// Owns: the thread that writes.   Threads: all calls from one.   Errors: open() where there can be no folder.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "kv/sessions.h"

namespace pagoda::kv {

class SessionFiles final : public SessionKeeper {
 public:
  static Result<std::unique_ptr<SessionFiles>> open(const std::filesystem::path& folder);
  ~SessionFiles() override;
  SessionFiles(const SessionFiles&) = delete;
  SessionFiles& operator=(const SessionFiles&) = delete;

  // What is there, before anything is saved. Files that have expired, were half written, or are damaged, are deleted.
  std::vector<SessionRecord> load() const;

  void save(SessionRecord record) override;
  void forget(const SessionKey& key, const Hash128& fingerprint) override;

 private:
  explicit SessionFiles(std::filesystem::path folder) : folder_(std::move(folder)), thread_([this] { run(); }) {}
  void change(std::string file_name, std::optional<SessionRecord> record);
  void run();
  void write(const std::string& file_name, const std::optional<SessionRecord>& record);

  const std::filesystem::path folder_;
  bool is_failing_ = false;  // the thread's: said so already
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::optional<SessionRecord>> waiting_;  // guarded by mutex_; by file; none: it goes
  bool is_stopping_ = false;                                     // guarded by mutex_
  std::thread thread_;
};

}  // namespace pagoda::kv
