#include "tensor/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <limits>

namespace pagoda::tensor {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugeBytes = size_t{2} << 20;

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

std::byte* map_anonymous(size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

// Maps 2 MiB more than asked, and gives back what lies before the boundary and after the end.
std::byte* map_huge(size_t bytes) {
  const size_t mapped = bytes + kHugeBytes;
  std::byte* base = map_anonymous(mapped);
  if (base == nullptr) return nullptr;
  const size_t address = reinterpret_cast<uintptr_t>(base);
  const size_t head = round_up(address, kHugeBytes) - address;
  if (head != 0) ::munmap(base, head);
  ::munmap(base + head + bytes, mapped - head - bytes);
  ::madvise(base + head, bytes, MADV_HUGEPAGE);  // advice: a kernel without huge pages may refuse it
  return base + head;
}

}  // namespace

Result<AlignedBuffer> AlignedBuffer::allocate(size_t bytes) {
  if (bytes == 0) return AlignedBuffer();
  std::byte* data = nullptr;
  if (bytes <= std::numeric_limits<size_t>::max() / 2) {
    const size_t pages = round_up(bytes, kPageBytes);
    data = bytes >= kHugeBytes ? map_huge(pages) : map_anonymous(pages);
  }
  if (data == nullptr) return fail(ErrorCode::kResourceExhausted, "cannot allocate {} bytes", bytes);
  return AlignedBuffer(data, bytes);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) ::munmap(data_, round_up(size_, kPageBytes));
}

}  // namespace pagoda::tensor
