#include "kv/tier_io.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <cerrno>

#include "base/check.h"

namespace pagoda::kv {
namespace {

class SyncIo final : public DiskIo {
 public:
  std::string_view name() const override { return "pread"; }
  size_t depth() const override { return 1; }

  void submit(const DiskOp& op) override {
    const auto offset = static_cast<off_t>(op.offset);
    ssize_t n;
    do {
      n = op.kind == DiskOp::Kind::kRead ? ::pread(op.fd, op.bytes.data(), op.bytes.size(), offset)
                                         : ::pwrite(op.fd, op.bytes.data(), op.bytes.size(), offset);
    } while (n < 0 && errno == EINTR);
    result_ = {.owner = op.owner, .n = n < 0 ? -errno : n};
  }
  DiskResult wait() override { return result_; }

 private:
  DiskResult result_;
};

class UringIo final : public DiskIo {
 public:
  explicit UringIo(size_t depth) : depth_(depth) {}
  ~UringIo() override {
    if (is_open_) ::io_uring_queue_exit(&ring_);
  }
  bool open() {
    is_open_ = ::io_uring_queue_init(static_cast<unsigned>(depth_), &ring_, 0) == 0;
    return is_open_ && has_reads_and_writes();
  }

  std::string_view name() const override { return "io_uring"; }
  size_t depth() const override { return depth_; }

  void submit(const DiskOp& op) override {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    CHECK(sqe != nullptr);  // the ring has `depth` entries, and each submit leaves none behind
    const auto size = static_cast<unsigned>(op.bytes.size());
    if (op.kind == DiskOp::Kind::kRead) {
      ::io_uring_prep_read(sqe, op.fd, op.bytes.data(), size, op.offset);
    } else {
      ::io_uring_prep_write(sqe, op.fd, op.bytes.data(), size, op.offset);
    }
    ::io_uring_sqe_set_data(sqe, op.owner);
    while (::io_uring_submit(&ring_) == -EINTR) {
    }
  }

  DiskResult wait() override {
    io_uring_cqe* cqe = nullptr;
    int error;
    do {  // also submits what an earlier submit could not
      error = ::io_uring_submit_and_wait(&ring_, 1);
      if (error >= 0) error = ::io_uring_peek_cqe(&ring_, &cqe);
    } while (error == -EINTR || error == -EAGAIN || error == -EBUSY);
    CHECK(error == 0);
    const DiskResult result{.owner = ::io_uring_cqe_get_data(cqe), .n = cqe->res};
    ::io_uring_cqe_seen(&ring_, cqe);
    return result;
  }

 private:
  // A ring may exist and its operations may not (kernel 5.1 to 5.5).
  bool has_reads_and_writes() {
    io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    const bool has_both =
        ::io_uring_opcode_supported(probe, IORING_OP_READ) && ::io_uring_opcode_supported(probe, IORING_OP_WRITE);
    ::io_uring_free_probe(probe);
    return has_both;
  }

  size_t depth_;
  io_uring ring_{};
  bool is_open_ = false;
};

}  // namespace

int DiskIo::allocate(int fd, uint64_t bytes) {
  int status;
  do {
    status = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (status != 0 && errno == EINTR);
  if (status == 0) return 0;
  if (errno != EOPNOTSUPP) return errno;
  return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

std::unique_ptr<DiskIo> make_sync_io() { return std::make_unique<SyncIo>(); }

std::unique_ptr<DiskIo> make_uring_io(size_t depth) {
  auto io = std::make_unique<UringIo>(depth);
  return io->open() ? std::move(io) : nullptr;
}

}  // namespace pagoda::kv
