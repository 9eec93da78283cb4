// DiskIo: reads and writes of files, several at once where the kernel allows it. The seam where tests inject a disk's faults.
// Units: bytes.   Owns: nothing of the caller's; buffers stay valid until their operation is returned by wait().
// Threads: one worker's.   Errors: negative errno in the result, as io_uring has it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace pagoda::kv {

struct DiskOp {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  int fd = -1;
  uint64_t offset = 0;
  std::span<std::byte> bytes;  // a write only reads them
  void* owner = nullptr;       // comes back with the result
};
struct DiskResult {
  void* owner = nullptr;
  int64_t n = 0;  // bytes moved: fewer than asked for is no error; or -errno
};

class DiskIo {
 public:
  virtual ~DiskIo() = default;
  virtual std::string_view name() const = 0;
  // Operations that may be under way at once. 1: submit() itself does the work.
  virtual size_t depth() const = 0;
  // Requires fewer than depth() under way.
  virtual void submit(const DiskOp& op) = 0;
  // The next finished operation, in any order. Requires one under way.
  virtual DiskResult wait() = 0;
  // Gives the file its length, with room on the disk where the file system can promise it. 0 or errno.
  virtual int allocate(int fd, uint64_t bytes);
};
// Makes the DiskIo of one worker.
using DiskIoFactory = std::function<std::unique_ptr<DiskIo>()>;

// pread and pwrite.
std::unique_ptr<DiskIo> make_sync_io();
// io_uring; null where the kernel or a seccomp filter forbids it.
std::unique_ptr<DiskIo> make_uring_io(size_t depth);

}  // namespace pagoda::kv
