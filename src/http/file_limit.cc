#include "http/file_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/log.h"

namespace pagoda::http {
namespace {

constexpr size_t kOtherDescriptors = 64;  // model, tiers, listener, those that are turned away

}  // namespace

void raise_file_limit(size_t n_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = n_connections + kOtherDescriptors;
  if (limit.rlim_cur < wanted) {  // unlimited is the largest number
    const rlimit raised{std::min<rlim_t>(wanted, limit.rlim_max), limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  if (limit.rlim_cur < wanted) {
    LOG_WARN(
        "of {} connections {} can be held: this process may open {} files; raise the limit (ulimit -Hn) or lower "
        "--max-connections",
        n_connections, usable_connections(n_connections), limit.rlim_cur);
  }
}

size_t usable_connections(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto available = static_cast<size_t>(limit.rlim_cur);
  return std::min(wanted, available > 2 * kOtherDescriptors ? available - kOtherDescriptors : kOtherDescriptors);
}

}  // namespace pagoda::http
