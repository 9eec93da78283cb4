// TierDir: the folder of a disk tier: its lock, the segment files in it, and what a start finds there.
//
//   lock                      flock'ed as long as the store is open: one process per folder
//   kv-<id, 16 hex>.seg       a whole segment (tier_format.h). Made as .new, given its length and header, then renamed: a .seg that is
//   kv-<id, 16 hex>.new       cut short or has a broken header was not left so by a dead process, but by a bad disk. Leftovers are deleted
//
// Files are 0600, a folder that it makes 0700. Other files in the folder are not ours: neither read nor counted nor deleted.
// Threads: open, recover and clear from one; create and remove from any.   Errors: as Error; kResourceExhausted is a full disk.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "kv/tier_catalogue.h"
#include "kv/tier_io.h"

namespace pagoda::kv {

class TierDir {
 public:
  // Makes the folder if its parent is there. Errors: not a folder, no permission, in use by another process.
  static Result<TierDir> open(const std::string& path);
  TierDir(TierDir&& other) noexcept;
  TierDir& operator=(TierDir&& other) = delete;
  ~TierDir();

  struct Quarantined {
    std::string path;
    uint64_t bytes = 0;
    std::string why;
  };
  struct Found {
    std::vector<std::unique_ptr<Segment>> segments;  // used longest ago first
    std::vector<Quarantined> quarantined;
    uint64_t quarantined_slots = 0;
    uint64_t next_id = 0;
  };
  // Reads the headers and record tables: O(segments), no payload.
  Result<Found> recover() const;

  // An empty segment file with all its room.
  Result<std::unique_ptr<Segment>> create(const SegmentShape& shape, DiskIo& io) const;
  static Status remove(const std::string& path);
  // Deletes every file that is ours. Requires that nothing of it is open.
  Status clear() const;

 private:
  TierDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  std::string segment_path(uint64_t id, const char* suffix) const;

  std::string path_;
  int lock_fd_;
};

}  // namespace pagoda::kv
