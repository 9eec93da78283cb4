#include "base/malloc_bounds.h"

#include <malloc.h>

namespace pagoda {

void bound_malloc() {
#ifdef __GLIBC__
  constexpr int kLargeBytes = 256 << 10;
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  mallopt(M_TRIM_THRESHOLD, 2 * kLargeBytes);
#endif
}

}  // namespace pagoda
